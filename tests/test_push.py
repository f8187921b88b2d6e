"""`--push-to-hub`, against a Hub that takes uploads as the real one does."""

import json
import shlex

import numpy as np
import pytest
import torch
import yaml
from conftest import ROW_MAKERS, assert_refused, make_document_rows, write_rows
from huggingface_hub import ModelCard, snapshot_download
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import bertkit
from bertkit.reports.card import rewrite_for_hub

pytestmark = pytest.mark.slow

MODEL = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
UPLOADED = MODEL | {"README.md", "metrics.json", "run.yaml"}
SHORT = {"max_steps": 2, "batch_size": 8, "bf16": False}


@pytest.fixture
def account(hub, monkeypatch):
    """A Hub on which there is somebody with a token that writes, and the token is set."""
    hub.uploads.tokens = {"hf_writes": ("somebody", "write"), "hf_reads": ("somebody", "read")}
    monkeypatch.setenv("HF_TOKEN", "hf_writes")
    return hub.uploads


def arguments(toy, tiny, folder):
    short = ["--max-steps", 2, "--batch-size", 8, "--no-bf16", "--output-dir", folder]
    return ["--data", toy, "--model", tiny, *short]


def logits(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        return model(**tokenizer("the film was lovely", return_tensors="pt")).logits.numpy()


def test_the_uploaded_model_gives_the_same_logits(cli, account, toy, tiny, tmp_path):
    run = tmp_path / "run"
    status, out, err = cli(
        "classify",
        *arguments(toy, tiny, run),
        "--json",
        "--push-to-hub",
        "--hub-model-id",
        "team/good-or-bad",
    )
    assert status == 0, err
    assert json.loads(out)["output_dir"] == str(run)
    [(message, paths)] = account.commits
    assert (message, set(paths)) == ("bertkit classify", UPLOADED)
    assert "uploaded to http" in err
    assert "visibility" not in account.created["team/good-or-bad"]  # the account decides
    np.testing.assert_array_equal(logits("team/good-or-bad"), logits(run))
    [record] = bertkit.load(snapshot_download("team/good-or-bad")).predict([{"text": "lovely"}])
    assert record == next(bertkit.load(run).predict([{"text": "lovely"}]))
    assert "push" not in (run / "run.yaml").read_text().split("provenance")[0]  # its recipe uploads nothing


def test_the_card_has_metadata_and_loads_from_the_hub(account, tiny, tmp_path):
    place = str(tmp_path / "mine")
    run = bertkit.classify(data="sample", model=str(tiny), push_to_hub=True, output_dir=place, **SHORT)
    card = ModelCard.load("somebody/mine")
    about = card.data.to_dict()
    assert (about["library_name"], about["pipeline_tag"]) == ("transformers", "text-classification")
    assert (about["tags"], card.data.model_name) == (["bertkit"], "mine")
    assert not about.keys() & {"base_model", "datasets", "language", "license"}  # a folder and our own sample
    scores = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert scores == run.metrics["validation"]
    assert "pipeline('text-classification', 'somebody/mine', top_k=None)" in card.text
    assert str(tmp_path / "mine") not in card.text.split("## Settings")[0]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"data": "sst2", "model": "klue/bert-base"}, ("nyu-mll/glue", "klue/bert-base")),
        ({"data": "org/set:part", "model": "bert-base-uncased"}, ("org/set", "bert-base-uncased")),
        ({"data": "/home/me/rows.csv", "model": "minilm"}, (None, None)),
        ({"data": "sample", "model": "/models/mine"}, (None, None)),
    ],
)
def test_the_card_links_the_base_model_and_dataset_on_the_hub(settings, expected):
    from bertkit.run.upload import build_card_metadata

    metrics = {"task": "classify", "data": {"name": "x"}, "validation": {}, "test": {}}
    about = build_card_metadata(metrics, settings, "me/it", "transformers")
    assert ((about.datasets or [None])[0], about.base_model) == expected


def test_a_card_without_pipeline_loads_a_snapshot_with_bertkit():
    card = "# run\n\n```python\nimport bertkit\n\nmodel = bertkit.load('it\\'s')\n```\n"
    assert rewrite_for_hub(card, "me/it") == (
        "# it\n\n```python\nimport bertkit\nfrom huggingface_hub import snapshot_download\n\n"
        "model = bertkit.load(snapshot_download('me/it'))\n```\n"
    )


@pytest.mark.parametrize(
    ("task", "tag"),
    [("nli", "text-classification"), ("ner", "token-classification"), ("qa", "question-answering"),
     ("swag", "multiple-choice")],
)  # fmt: skip
def test_every_task_can_be_uploaded(account, tiny, tmp_path, task, tag):
    rows = write_rows(tmp_path / "rows.jsonl", ROW_MAKERS[task](40))
    more = {"qa": {"squad": "v1"}, "nli": {"pooling": "mean"}}.get(task, {})
    getattr(bertkit, task)(data=str(rows), model=str(tiny), push_to_hub=True, hub_private_repo=True,
                           output_dir=str(tmp_path / task), **SHORT, **more)  # fmt: skip
    assert account.created[f"somebody/{task}"]["visibility"] == "private"
    assert ModelCard.load(f"somebody/{task}").data.pipeline_tag == tag
    [(_, paths)] = account.commits
    assert ("1_Pooling/config.json" in paths) == (task == "nli")
    assert bertkit.load(snapshot_download(f"somebody/{task}")).task.definition.name == task


@pytest.mark.parametrize(("objective", "tag"), [("mlm", "fill-mask"), ("ltr", "text-generation")])
def test_a_pretrained_model_can_be_uploaded(account, tiny, tmp_path, objective, tag):
    text = write_rows(tmp_path / "text.jsonl", make_document_rows(40))
    bertkit.pretrain_mlm_nsp(data=str(text), tokenizer=str(tiny), size="tiny", objective=objective,
                             push_to_hub=True, output_dir=str(tmp_path / "pre"), **SHORT)  # fmt: skip
    assert ModelCard.load("somebody/pre").data.pipeline_tag == tag


# ---- refused before training


@pytest.mark.parametrize(
    ("flags", "token", "words"),
    [
        (["--push-to-hub"], None, ["no token", "hf auth login", "HF_TOKEN"]),
        (["--push-to-hub"], "hf_wrong", ["rejected the token", "hf auth login"]),
        (["--push-to-hub"], "hf_reads", ["read-only", "hf auth login"]),
        (["--push-to-hub", "--hub-model-id", "a/b/c"], "hf_writes", ["--hub-model-id a/b/c", "ORG/NAME"]),
        (["--push-to-hub", "--hub-model-id", "no spaces"], "hf_writes", ["--hub-model-id no spaces"]),
        (["--push-to-hub", "--hub-model-id", "others/it"], "hf_writes", ["others/it", "--hub-model-id"]),
        (["--hub-model-id", "team/it"], "hf_writes", ["--hub-model-id", "--push-to-hub"]),
        (["--hub-private-repo"], "hf_writes", ["--hub-private-repo", "--push-to-hub"]),
    ],
)
def test_refused_before_training(cli, account, toy, tiny, tmp_path, monkeypatch, flags, token, words):
    monkeypatch.setenv("HF_TOKEN", token or "")
    assert_refused(cli, tmp_path, [*arguments(toy, tiny, tmp_path / "run"), *flags], words)
    assert (account.created, account.commits) == ({}, [])


def test_an_unreachable_hub_is_reported_before_training(cli, no_hub, toy, tiny, tmp_path):
    args = [*arguments(toy, tiny, tmp_path / "run"), "--push-to-hub"]
    assert_refused(cli, tmp_path, args, ["--push-to-hub", "cannot be reached", "--resume"])


def test_a_dry_run_creates_no_repository(cli, account, toy, tiny, tmp_path):
    assert cli("classify", *arguments(toy, tiny, tmp_path / "run"), "--push-to-hub", "--dry-run")[0] == 0
    assert (account.created, account.commits) == ({}, [])


# ---- afterwards


def test_an_upload_that_fails_loses_nothing(cli, account, toy, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)  # between the library's own attempts
    run = tmp_path / "a run"
    command = ["classify", *arguments(toy, tiny, run), "--push-to-hub", "--hub-model-id", "team/it"]
    for account.fails in ("_commit", "_batch", "_validate"):
        status, _, err = cli(*command)
        assert (status, account.commits) == (2, []), account.fails
        last = err.splitlines()[-1]
        assert "the run is finished, but was not uploaded" in last
        command = shlex.split(last.partition("upload it with: bertkit ")[2])
    account.fails = ""
    status, out, err = cli(*command)
    assert status == 0, err
    assert "accuracy" in out
    assert set(account.commits[0][1]) == UPLOADED
    np.testing.assert_array_equal(logits("team/it"), logits(run))


def test_one_process_uploads_a_run_of_several_hosts(tmp_path, monkeypatch):
    from bertkit.run import upload
    from bertkit.tasks.text.config import ClassifyConfig

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(upload, "create_hub_repo", interrupt)
    variables = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "first"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(bertkit.UserError, match="upload it with: bertkit classify --resume "):
        upload.upload_run("classify", tmp_path, ClassifyConfig(data="sample", push_to_hub=True))


def test_an_interrupted_run_is_uploaded_after_resume(cli, account, toy, tiny, tmp_path, stop_at):
    run = tmp_path / "run"
    stop_at(1)
    status, _, err = cli("classify", *arguments(toy, tiny, run), "--push-to-hub")
    assert (status, account.commits) == (130, [])
    again = shlex.split(err.splitlines()[-1].partition("resume with: bertkit ")[2])
    assert again[-1] == "--push-to-hub"
    assert cli(*again)[0] == 0
    assert set(account.commits[0][1]) == UPLOADED
    assert yaml.safe_load((run / "run.yaml").read_text())["settings"].keys().isdisjoint({"push_to_hub"})


def test_suites_have_no_push_flag(cli):
    for suite in ("glue", "feature-based", "ablation"):
        assert "--push-to-hub" not in cli(suite, "--help")[1]
