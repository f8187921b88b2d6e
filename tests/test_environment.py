"""`env` and `data ls`, as text and as one JSON object."""

import json

import pytest

from bertkit.data.sources import load_dataset_specs


@pytest.mark.slow
def test_env_prints_versions_device_and_hub_status(cli, no_hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    status, out, _ = cli("env", "--json")
    environment = json.loads(out)
    assert status == 0
    assert {"python", "torch", "transformers", "device", "bf16", "cache"} <= environment.keys()
    assert (environment["Hub"], environment["Hub token"]) == (f"{no_hub} cannot be reached", "set")
    assert environment["BERTKIT_DATA_DIR"] == "unset"
    text = cli("env")[1]
    del environment["plugins"]
    assert [line.split()[0] for line in text.splitlines()] == [name.split()[0] for name in environment]
    assert "hf_secret" not in text + out


def test_env_reports_a_reachable_hub(cli, hub):
    environment = json.loads(cli("env", "--json")[1])
    assert (environment["Hub"], environment["Hub token"]) == (f"{hub.url} is reachable", "none")


def test_data_ls_shows_the_source_of_each_dataset(cli, tmp_path):
    (tmp_path / "SST-2").mkdir()
    _, out, _ = cli("data", "ls", "--json", "--data-dir", tmp_path)
    datasets = json.loads(out)
    assert list(datasets) == [*load_dataset_specs(), "sample"]
    assert datasets["sst2"] == {"found": str(tmp_path / "SST-2"), "title": load_dataset_specs()["sst2"].title}
    assert [line.split()[0] for line in cli("data", "ls")[1].splitlines()] == list(datasets)


def test_env_reports_a_cache_path_that_is_a_file(cli, no_hub, tmp_path, monkeypatch):
    file = tmp_path / "cache"
    file.write_text("mine")
    monkeypatch.setenv("BERTKIT_CACHE_DIR", str(file))
    cache = json.loads(cli("env", "--json")[1])["cache"]
    assert "is a file, so nothing is cached" in cache
    assert "safe to delete" not in cache
