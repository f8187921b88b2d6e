"""A seed repeats a run to the bit, however many processes load its batches."""

import pytest
from conftest import ROW_MAKERS, make_document_rows, write_rows

import bertkit

FILES = ("model.safetensors", "training_log.jsonl")


@pytest.mark.parametrize("task", [*ROW_MAKERS, "pretrain-mlm-nsp"])
def test_a_seed_repeats_a_run_with_any_number_of_loaders(tiny, tmp_path, task):
    data = write_rows(tmp_path / "data.jsonl", ROW_MAKERS.get(task, make_document_rows)(40))
    train = getattr(bertkit, task.replace("-", "_"))

    def run(name, workers, seed=0):
        settings = {"max_steps": 6, "batch_size": 8, "max_length": 32, "save_steps": 4, "bf16": False}
        loaders = [f"dataloader_num_workers={workers}"]
        out = tmp_path / name
        train(data=data, model=tiny, output_dir=out, seed=seed, split_seed=0, set=loaders, **settings)
        return {path.name: path.read_bytes() for name in (*FILES, "predictions*") for path in out.glob(name)}

    first = run("first", 0)
    assert len(first) >= 2
    for workers in (0, 1, 3):
        assert run(f"workers{workers}", workers) == first
    assert run("another", 0, seed=1)["model.safetensors"] != first["model.safetensors"]
