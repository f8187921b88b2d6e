"""`env` and `data ls`: for people, and as one JSON object."""

import json

from bertkit.data.registry import load_dataset_specs


def test_env_tells_versions_device_and_what_can_be_reached(cli, no_hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    status, out, _ = cli("env", "--json")
    found = json.loads(out)
    assert status == 0
    assert {"python", "torch", "transformers", "device", "bf16", "cache"} <= found.keys()
    assert (found["Hub"], found["Hub token"]) == (f"{no_hub} cannot be reached", "set")
    assert found["BERTKIT_DATA_DIR"] == "unset"
    told = cli("env")[1]
    assert [line.split()[0] for line in told.splitlines()] == [name.split()[0] for name in found]
    assert "hf_secret" not in told + out


def test_env_reaches_a_hub(cli, hub):
    found = json.loads(cli("env", "--json")[1])
    assert (found["Hub"], found["Hub token"]) == (f"{hub.url} is reached", "none")


def test_data_ls_tells_where_each_set_was_found(cli, tmp_path):
    (tmp_path / "SST-2").mkdir()
    _, out, _ = cli("data", "ls", "--json", "--data-dir", tmp_path)
    found = json.loads(out)
    assert list(found) == [*load_dataset_specs(), "sample"]
    assert found["sst2"] == {"found": str(tmp_path / "SST-2"), "title": load_dataset_specs()["sst2"].title}
    assert [line.split()[0] for line in cli("data", "ls")[1].splitlines()] == list(found)


def test_a_cache_that_is_a_file_is_told(cli, no_hub, tmp_path, monkeypatch):
    file = tmp_path / "cache"
    file.write_text("mine")
    monkeypatch.setenv("BERTKIT_CACHE_DIR", str(file))
    told = json.loads(cli("env", "--json")[1])["cache"]
    assert "a file, so nothing is cached" in told
    assert "safe to delete" not in told
