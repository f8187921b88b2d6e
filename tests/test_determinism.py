"""Test that runs with the same seed are bit-identical with any number of data loader processes."""

import pytest
from conftest import ROW_MAKERS, make_document_rows, write_rows

import bertkit

pytestmark = pytest.mark.slow

FILES = ("model.safetensors", "training_log.jsonl")


@pytest.mark.parametrize("task", [*ROW_MAKERS, "pretrain-mlm-nsp"])
def test_runs_with_the_same_seed_are_bit_identical_with_any_number_of_workers(tiny, tmp_path, task):
    data = write_rows(tmp_path / "data.jsonl", ROW_MAKERS.get(task, make_document_rows)(40))
    train = getattr(bertkit, task.replace("-", "_"))

    def run(name, workers, seed=0):
        settings = {"max_steps": 6, "batch_size": 8, "max_length": 32, "save_steps": 4, "bf16": False}
        overrides = [f"dataloader_num_workers={workers}"]
        out = tmp_path / name
        train(data=data, model=tiny, output_dir=out, seed=seed, split_seed=0, set=overrides, **settings)
        return {path.name: path.read_bytes() for name in (*FILES, "predictions*") for path in out.glob(name)}

    first = run("first", 0)
    assert len(first) >= 2
    for workers in (1, 3):
        assert run(f"workers{workers}", workers) == first
    assert run("another", 0, seed=1)["model.safetensors"] != first["model.safetensors"]
