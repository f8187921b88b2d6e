"""`classify` from rows to run directory, on tiny models."""

import json
import random

import numpy as np
import pytest
from conftest import (
    NEUTRAL_WORDS,
    POSITIVE_WORDS,
    costly_parts,
    make_toy_rows,
    read_predictions,
    save_tiny_model,
    slow_fixture,
    write_rows,
)

import bertkit
from bertkit.errors import UserError
from bertkit.run_directory import RunDir
from bertkit.utils.cache import get_cache_directory

FAST = {"batch_size": 8, "learning_rate": 3e-3, "seed": 1, "bf16": False}


@slow_fixture
def learned(tiny_without_dropout, tmp_path_factory):
    """A run on a separable toy."""
    folder = tmp_path_factory.mktemp("learned")
    data = write_rows(folder / "toy.jsonl", make_toy_rows(200))
    test = write_rows(folder / "test.jsonl", make_toy_rows(30, seed=9))
    with costly_parts("linear_probe"):
        return bertkit.classify(
            data=str(data), test=str(test), model=str(tiny_without_dropout), epochs=3,
            output_dir=str(folder / "run"), **FAST | {"learning_rate": 5e-3},
        )  # fmt: skip


def test_a_separable_dataset_is_learned_perfectly(learned):
    assert learned.metrics["validation"]["accuracy"] == 1.0
    assert learned.metrics["test"]["accuracy"] == 1.0
    assert learned.metrics["baselines"]["majority"]["accuracy"] == 0.5


def test_metrics_have_the_documented_keys(learned):
    metrics = json.loads((learned.output_dir / "metrics.json").read_text())
    assert metrics == learned.metrics
    assert metrics["data"] | {"train": 180, "validation": 20, "test": 30} == metrics["data"]
    decision_scores = {"accuracy", "f1", "precision", "recall", "matthews", "positive_f1"}
    assert set(metrics["validation"]) == decision_scores | {"ece", "nll", "brier"}
    assert set(metrics["intervals"]) == set(metrics["validation"])
    assert set(metrics["baselines"]) == {"majority", "tfidf", "linear_probe"}
    assert set(metrics["training"]) == {
        "seconds", "steps", "examples_per_second", "tokens_per_second", "peak_memory_mb", "loss", "precision",
        "device", "trainable_parameters",
        "resumed_from", "first_step_seconds", "padding", "data_wait", "batch_size",
        "gradient_accumulation_steps", "examples_seen", "examples_per_epoch",
    }  # fmt: skip
    assert metrics["training"]["steps"] == 3 * 23
    assert metrics["training"]["first_step_seconds"] > 0


def test_the_pipeline_gives_the_same_probabilities(learned):
    from transformers import pipeline

    classifier = pipeline("text-classification", str(learned.output_dir), top_k=None)
    records = read_predictions(learned.output_dir)
    found = classifier([record["text"] for record in records], truncation=True)
    for record, scores in zip(records, found, strict=True):
        assert {s["label"]: s["score"] for s in scores} == pytest.approx(record["probabilities"], abs=1e-5)
        assert record["predicted"] == max(scores, key=lambda score: score["score"])["label"]


def test_predictions_include_the_input_columns(learned):
    records = read_predictions(learned.output_dir, "predictions-test.jsonl")
    rows = make_toy_rows(30, seed=9)
    assert [record["text"] for record in records] == [row["text"] for row in rows]
    assert [record["gold"] for record in records] == [row["label"] for row in rows]
    assert list(records[0]) == ["id", "text", "gold", "predicted", "probabilities"]


def test_load_predicts_as_the_run_did(learned):
    records = read_predictions(learned.output_dir)
    again = list(bertkit.load(learned.output_dir).predict([{"text": r["text"]} for r in records]))
    for record, found in zip(records, again, strict=True):
        assert found["probabilities"] == pytest.approx(record["probabilities"], abs=1e-6)
        assert "gold" not in found


@pytest.mark.slow
def test_run_yaml_reproduces_the_run(learned, tmp_path):
    recipe = str(learned.output_dir / "run.yaml")
    again = bertkit.classify(recipe=recipe, output_dir=str(tmp_path / "again"))
    assert again.metrics["validation"] == learned.metrics["validation"]
    weights = "model.safetensors"
    assert (again.output_dir / weights).read_bytes() == (learned.output_dir / weights).read_bytes()


def test_the_model_card_has_data_scores_settings_and_versions(learned):
    card = (learned.output_dir / "README.md").read_text()
    for words in ("180 training", "accuracy | 1.000", "learning_rate: 0.005", "transformers:", "pipeline("):
        assert words in card


def test_labels_that_differ_only_in_case_do_not_share_an_output_of_the_head():
    from transformers import BertConfig

    from bertkit.models.heads import SEQUENCE_HEAD, match_labels

    config = BertConfig(
        architectures=["BertForSequenceClassification"],
        id2label={0: "us", 1: "it"},
        label2id={"us": 0, "it": 1},
    )
    assert match_labels(config, ["It", "US"], "tiny", SEQUENCE_HEAD) == (False, ["US", "It"])
    with pytest.raises(UserError, match="its head was trained for us, it, the data has us, US, it"):
        match_labels(config, ["us", "US", "it"], "tiny", SEQUENCE_HEAD)


@pytest.mark.slow
def test_continuing_from_a_run_keeps_its_head_and_label_order(learned, tmp_path):
    rows = [{**row, "label": "Zero" if row["label"] == "positive" else "Ätna"} for row in make_toy_rows(40)]
    data = write_rows(tmp_path / "other.jsonl", rows)
    with pytest.raises(
        UserError, match="its head was trained for negative, positive, the data has Zero, Ätna"
    ):
        bertkit.classify(data=str(data), model=str(learned.output_dir))
    config = json.loads((learned.output_dir / "config.json").read_text())
    config["id2label"] = {"0": "ÄTNA", "1": "Zero"}  # what the run called negative and positive
    swapped = tmp_path / "swapped"
    swapped.mkdir()
    for path in learned.output_dir.iterdir():
        if path.is_file():
            (swapped / path.name).write_bytes(path.read_bytes())
    (swapped / "config.json").write_text(json.dumps(config))
    rows = [{**row, "label": "Zero" if row["label"] == "positive" else "Ätna"} for row in make_toy_rows(40)]
    data = write_rows(tmp_path / "same.jsonl", rows)
    run = bertkit.classify(
        data=str(data),
        model=str(swapped),
        max_steps=1,
        output_dir=str(tmp_path / "r"),
        **FAST | {"learning_rate": 0.0},
    )
    assert json.loads((run.output_dir / "config.json").read_text())["id2label"] == {"0": "Ätna", "1": "Zero"}
    assert run.metrics["validation"]["accuracy"] == 1.0


@pytest.mark.slow
def test_pairs(tiny, tmp_path):
    rng = random.Random(0)
    rows = []
    for number in range(120):
        first, second = rng.choice(NEUTRAL_WORDS), rng.choice(POSITIVE_WORDS)
        same = number % 2
        rows.append({"sentence1": f"{first} {second}", "sentence2": second if same else "bad", "label": same})
    rows = [dict(t) for t in {tuple(sorted(row.items())) for row in rows}]
    data = write_rows(tmp_path / "pairs.jsonl", sorted(rows, key=str))
    run = bertkit.classify(
        data=str(data), model=str(tiny), epochs=4, output_dir=str(tmp_path / "run"),
        **FAST | {"learning_rate": 5e-3},
    )  # fmt: skip
    assert run.metrics["validation"]["accuracy"] > 0.9
    assert set(read_predictions(run.output_dir)[0]) >= {"sentence1", "sentence2", "gold"}


@pytest.mark.slow
def test_regression(tmp_path):
    quick = {"initializer_range": 0.1, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = save_tiny_model(tmp_path / "model", **quick)
    rng = np.random.default_rng(0)
    rows = []
    for count in rng.integers(0, 8, 200):
        words = ["good"] * int(count) + rng.choice(NEUTRAL_WORDS, 8 - int(count)).tolist()
        rows.append({"text": " ".join(rng.permutation(words)), "score": float(count) + 0.5})
    data = write_rows(tmp_path / "scores.jsonl", rows)
    run = bertkit.classify(
        data=str(data), model=str(model), epochs=2, output_dir=str(tmp_path / "run"),
        **FAST | {"learning_rate": 5e-3},
    )  # fmt: skip
    assert run.metrics["validation"]["pearson"] > 0.9
    record = read_predictions(run.output_dir)[0]
    assert isinstance(record["gold"], float)
    assert "probabilities" not in record
    assert run.metrics["baselines"]["majority"]["pearson"] == 0.0


@pytest.mark.slow
def test_multi_label(tiny, tmp_path):
    from sklearn.metrics import f1_score

    rng = random.Random(0)
    rows = []
    for row in make_toy_rows(200):
        chances = {"often": 0.95, "rarely": 0.05, "even": 0.5}
        labels = [name for name, chance in chances.items() if rng.random() < chance]
        rows.append({"text": row["text"], "labels": labels})
    separated = [row | {"labels": "|".join(row["labels"]) or "|"} for row in rows]
    lists = write_rows(tmp_path / "lists.jsonl", rows)
    data = write_rows(tmp_path / "separated.jsonl", separated)
    settings = {"model": str(tiny), **FAST, "learning_rate": 5e-3}
    run = bertkit.classify(data=str(data), epochs=2, output_dir=str(tmp_path / "run"), **settings)
    of_lists = bertkit.classify(data=str(lists), max_steps=1, output_dir=str(tmp_path / "lists"), **settings)
    records = read_predictions(run.output_dir)
    names = list(records[0]["probabilities"])
    assert sorted(names) == ["even", "often", "rarely"]
    for record, of_list in zip(records, read_predictions(of_lists.output_dir), strict=True):
        assert (of_list["text"], of_list["gold"]) == (record["text"], record["gold"])
        assert list(of_list["probabilities"]) == names
    assert sum("often" in r["predicted"] and "rarely" not in r["predicted"] for r in records) > 0.9 * len(
        records
    )
    for record in records:
        assert record["predicted"] == [name for name in names if record["probabilities"][name] > 0.5]
    gold, found = (
        [[name in record[key] for name in names] for record in records] for key in ("gold", "predicted")
    )
    for average in ("micro", "macro"):
        wanted = f1_score(gold, found, average=average, zero_division=0)
        assert run.metrics["validation"][f"{average}_f1"] == pytest.approx(wanted)


@pytest.mark.slow
def test_class_weights_improve_a_rare_class(tiny, tmp_path):
    rows = [row for n, row in enumerate(make_toy_rows(300)) if row["label"] == "negative" or n % 20 == 1]
    data = write_rows(tmp_path / "rare.jsonl", rows)
    options = {"data": str(data), "model": str(tiny), "validation_fraction": 0.4, "max_steps": 20}

    def belief(name, **more):
        run = bertkit.classify(**options, output_dir=str(tmp_path / name), **FAST, **more)
        return np.mean([record["probabilities"]["positive"] for record in read_predictions(run.output_dir)])

    assert belief("plain") < 0.3 < 0.4 < belief("balanced", class_weights="balanced") < 0.65


def long_rows(count):
    """Return texts of 24 words whose only informative word is in the middle, outside of head and tail."""
    rng = random.Random(3)
    rows = []
    for number in range(count):
        words = rng.choices(NEUTRAL_WORDS, k=24)
        words[12] = ("bad", "good")[number % 2]
        rows.append({"text": " ".join(words), "label": ("n", "p")[number % 2]})
    return rows


@pytest.mark.slow
def test_windows_read_text_that_head_truncates(tmp_path):
    settings = {"initializer_range": 0.2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = save_tiny_model(tmp_path / "model", num_hidden_layers=1, **settings)
    data = write_rows(tmp_path / "long.jsonl", long_rows(300))
    options = {
        "data": str(data),
        "model": str(model),
        "max_length": 12,
        "epochs": 4,
        **FAST | {"batch_size": 16, "learning_rate": 5e-3},
    }
    head = bertkit.classify(**options, output_dir=str(tmp_path / "head"))
    windows = bertkit.classify(**options, long_texts="windows", output_dir=str(tmp_path / "windows"))
    assert head.metrics["validation"]["accuracy"] < 0.8
    assert windows.metrics["validation"]["accuracy"] > 0.9
    records = read_predictions(windows.output_dir)
    again = list(bertkit.load(windows.output_dir).predict([{"text": r["text"]} for r in records]))
    assert [r["predicted"] for r in again] == [r["predicted"] for r in records]
    assert "bertkit.load" in (windows.output_dir / "README.md").read_text()


@pytest.mark.slow
def test_frozen_layers_are_unchanged_and_the_others_are_trained(tiny, toy, tmp_path):
    from safetensors.torch import load_file

    run = bertkit.classify(
        data=str(toy), model=str(tiny), max_steps=3, freeze=1, output_dir=str(tmp_path / "run"), **FAST
    )
    before, after = load_file(tiny / "model.safetensors"), load_file(run.output_dir / "model.safetensors")
    same = {name for name in before if (before[name] == after["bert." + name]).all()}
    assert any("embeddings" in name for name in same)
    assert {name for name in before if ".layer.0." in name} <= same
    assert not {name for name in before if ".layer.1." in name and "weight" in name} & same


@pytest.mark.slow
def test_early_stopping_keeps_the_best_weights(tiny, toy, tmp_path):
    swapped = {"negative": "positive", "positive": "negative"}  # validation scores get worse
    rows = [row | {"label": swapped[row["label"]]} for row in make_toy_rows(40, seed=9)]
    validation = write_rows(tmp_path / "validation.jsonl", rows)
    run = bertkit.classify(
        data=str(toy), validation=str(validation), model=str(tiny), epochs=30, early_stopping=2,
        output_dir=str(tmp_path / "run"), **FAST,
    )  # fmt: skip
    steps = run.metrics["training"]["steps"]
    assert steps < 30 * 10
    kept = sorted(path.name for path in (run.output_dir / "checkpoints").iterdir())
    [best] = [name for name in kept if name != f"checkpoint-{steps}"]
    weights = run.output_dir / "model.safetensors"
    assert weights.read_bytes() == (run.output_dir / "checkpoints" / best / weights.name).read_bytes()


@pytest.mark.slow
def test_unlabeled_test_rows_get_predictions_but_no_scores(tiny, toy, tmp_path):
    test = write_rows(tmp_path / "test.jsonl", [{"text": "a good film"}, {"text": "a bad film"}])
    run = bertkit.classify(
        data=str(toy), test=str(test), model=str(tiny), max_steps=1, output_dir=str(tmp_path / "run"), **FAST
    )
    assert run.metrics["test"] == {}
    assert [r["gold"] for r in read_predictions(run.output_dir, "predictions-test.jsonl")] == [None, None]


@pytest.mark.slow
def test_clashing_input_columns_are_renamed(tiny, tmp_path):
    rows = [{**row, "id": f"a{n}", "predicted": "x"} for n, row in enumerate(make_toy_rows(40))]
    data = write_rows(tmp_path / "clash.jsonl", rows)
    run = bertkit.classify(
        data=str(data), model=str(tiny), max_steps=1, output_dir=str(tmp_path / "run"), **FAST
    )
    record = read_predictions(run.output_dir)[0]
    assert record["id"] == 0
    assert record["input_id"].startswith("a")
    assert record["input_predicted"] == "x"


def list_files_outside_cache(folder):
    """Return all paths in a folder that are not in the cache of the test."""
    cache = get_cache_directory()
    return sorted(path for path in folder.rglob("*") if path != cache and cache not in path.parents)


def test_dry_run_writes_only_to_the_cache(cli, tiny, toy, tmp_path):
    before = list_files_outside_cache(tmp_path)
    status, out, _ = cli("classify", "--data", toy, "--model", tiny, "--dry-run", "--json")
    found = json.loads(out)
    assert status == 0
    assert list_files_outside_cache(tmp_path) == before
    assert found["data"]["train"] == 72
    assert found["steps"] == 4 * 5
    assert found["estimated_seconds"] > 0


@pytest.mark.slow
def test_standard_output_is_only_json(cli, tiny, toy, tmp_path):
    status, out, err = cli(
        "classify", "--data", toy, "-m", tiny, "--max-steps", 1, "--json", "-o", tmp_path / "run"
    )
    assert status == 0
    assert json.loads(out)["output_dir"] == str(tmp_path / "run")
    assert "toy" in err


@pytest.mark.slow
def test_the_default_directory_gets_a_number_if_it_exists(cli, tiny, toy):
    for name in ("classify-toy-tiny", "classify-toy-tiny-2"):
        status, out, _ = cli("classify", "--data", toy, "--model", tiny, "--max-steps", 1)
        assert (status, out.splitlines()[-1]) == (0, f"run: runs/{name}")


@pytest.mark.slow
@pytest.mark.linear_probe
def test_the_table_says_on_how_many_rows_a_baseline_is_fitted(cli, tiny, toy, tmp_path, monkeypatch):
    for module in ("stats.baseline_models", "run.results"):
        monkeypatch.setattr(f"bertkit.{module}.MAX_TFIDF_ROWS", 40)
    for module in ("stats.linear_probe", "run.results"):
        monkeypatch.setattr(f"bertkit.{module}.MAX_PROBE_ROWS", 30)
    args = ["--data", toy, "--model", tiny, "--max-steps", 1, "-o", tmp_path / "run"]
    status, out, _ = cli("classify", *args)
    assert status == 0
    assert "tfidf (fitted on" in out
    assert RunDir(tmp_path / "run").read_metrics()["baseline_rows"] == {"tfidf": 40, "linear_probe": 30}
    for name in ("README.md", "report.html"):
        assert "tfidf (fitted on 40 rows)" in (tmp_path / "run" / name).read_text("utf-8")


@pytest.mark.slow
def test_texts_without_words_are_scored(tiny, tmp_path):
    rows = [{"text": "?" * (n + 1), "label": ("x", "y")[n % 2]} for n in range(40)]
    data = write_rows(tmp_path / "marks.jsonl", rows)
    run = bertkit.classify(
        data=str(data), model=str(tiny), max_steps=1, output_dir=str(tmp_path / "run"), **FAST
    )
    assert run.metrics["baselines"]["tfidf"] == run.metrics["baselines"]["majority"]


@pytest.mark.slow
def test_set_accepts_small_numbers_and_columns_odd_values(tiny, tmp_path):
    rows = [
        {**row, "id": n, "input_id": "x", "extra": float("nan")} for n, row in enumerate(make_toy_rows(40))
    ]
    rows[3]["text"] += " \ud800"
    data = tmp_path / "odd.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"data": str(data), "model": str(tiny), "max_steps": 1, "set": ["adam_epsilon=1e-6"]}
    run = bertkit.classify(**options, validation_fraction=0.5, output_dir=str(tmp_path / "run"), **FAST)
    text = (run.output_dir / "predictions.jsonl").read_text("utf-8")
    assert "NaN" not in text
    record = json.loads(text.splitlines()[0])
    assert record["extra"] is None
    assert {"x", rows[0]["id"]} & {record["input_id"], record["input_input_id"]}


def test_predicting_does_not_read_labels(learned):
    rows = [{"text": "a good film", "label": "unheard of"}, {"text": "a bad film"}]
    found = list(bertkit.load(learned.output_dir).predict(rows))
    assert [(r["id"], r["label"]) for r in found] == [(0, "unheard of"), (1, None)]  # as any other column
    with pytest.raises(UserError, match="rows: expected dictionaries"):
        list(bertkit.load(learned.output_dir).predict(["a good film"]))


@pytest.mark.slow
def test_a_run_without_epochs_does_not_warn_about_its_training(cli, tmp_path, tiny, toy):
    flags = ["--data", toy, "--model", tiny, "--epochs", 0, "--no-bf16", "-o", tmp_path / "run"]
    status, out, err = cli("classify", *flags)
    assert status == 0, err
    assert "warning" not in err
    assert "not trained: 0 steps" in out
