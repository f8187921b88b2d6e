"""Runs whose rows are stored on disk equal runs whose rows are in memory, for tasks that transform rows."""

import pytest
from conftest import make_swag_rows, read_predictions, write_rows

import bertkit

SETTINGS = {"max_steps": 2, "batch_size": 4, "seed": 1, "bf16": False}


def run_in_memory_and_on_disk(run, folder, monkeypatch, **settings):
    """Run a task twice, and check that predictions and weights are bit-identical."""
    for name, limit in (("memory", 1 << 30), ("disk", 0)):
        monkeypatch.setattr("bertkit.data.readers.files.IN_MEMORY_BYTES", limit)
        run(**settings, **SETTINGS, output_dir=str(folder / name))
    memory, disk = folder / "memory", folder / "disk"
    assert read_predictions(memory) == read_predictions(disk)
    assert (memory / "model.safetensors").read_bytes() == (disk / "model.safetensors").read_bytes()


@pytest.mark.parametrize("columns", ["list", "numbered"])
def test_swag_runs_are_bit_identical(tmp_path, tiny, monkeypatch, columns):
    rows = [row | {"start": "it"} for row in make_swag_rows(40)]
    if columns == "numbered":
        rows = [
            {f"ending{number}": ending for number, ending in enumerate(row.pop("endings"))} | row
            for row in rows
        ]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    run_in_memory_and_on_disk(
        bertkit.swag, tmp_path, monkeypatch, data=str(data), model=str(tiny), start_column="start"
    )
