"""`klue`: the official metrics against independent computations, and all six tasks in the original layout."""

import json
import math
import random

import numpy as np
import pytest
import yaml
from conftest import costly_parts, make_nli_rows, make_toy_rows, slow_fixture
from seqeval.metrics import f1_score as seqeval_f1
from seqeval.scheme import IOB2
from test_relations import make_rows as make_relation_rows

import bertkit
from bertkit.data.sources import load_dataset_specs
from bertkit.experiments.suites import load_table
from bertkit.stats.klue import SCORERS, compute_rouge_w, normalize_answer

KLUE_TASKS = load_table("klue").tasks
RELATIONS = ["no_relation", "per:title", "org:members", "per:parents"]
TAGS = ["O", "B-PS", "I-PS", "B-LC", "I-LC"]


def count_f1(gold, predicted, label):
    """F1 of one label, counted in a loop."""
    pairs = list(zip(gold, predicted, strict=True))
    hits = sum(one == other == label for one, other in pairs)
    return 2 * hits / (gold.count(label) + predicted.count(label))


# ---- metrics


def test_macro_f1_of_topics_is_the_mean_over_topics():
    rng = random.Random(0)
    gold, predicted = ([rng.choice("abc") for _ in range(60)] for _ in range(2))
    records = [{"gold": one, "predicted": other} for one, other in zip(gold, predicted, strict=True)]
    expected = np.mean([count_f1(gold, predicted, label) for label in "abc"])
    assert SCORERS["ynat"](records) == {"macro_f1": pytest.approx(expected)}


def test_similarity_is_scored_by_correlation_and_by_f1_at_three():
    rng = np.random.default_rng(0)
    gold, predicted = rng.uniform(0, 5, (2, 50)).round(1)
    gold[0] = 3.0  # exactly the threshold counts as a paraphrase
    found = SCORERS["sts"]([{"gold": g, "predicted": p} for g, p in zip(gold, predicted, strict=True)])
    assert found["pearson"] == pytest.approx(np.corrcoef(gold, predicted)[0, 1])
    hits = int(((gold >= 3) & (predicted >= 3)).sum())
    assert found["paraphrase_f1"] == pytest.approx(2 * hits / ((gold >= 3).sum() + (predicted >= 3).sum()))


def test_a_constant_prediction_has_no_correlation():
    records = [{"gold": score, "predicted": 2.0} for score in (1.0, 4.0)]
    assert SCORERS["sts"](records) == {"pearson": 0.0, "paraphrase_f1": 0.0}


def test_entities_are_scored_as_by_seqeval_and_characters_by_tag():
    rng = random.Random(1)
    records = [{key: make_tags(rng) for key in ("gold", "predicted")} for _ in range(40)]
    gold, predicted = ([record[key] for record in records] for key in ("gold", "predicted"))
    found = SCORERS["ner"](records)
    expected = seqeval_f1(gold, predicted, average="macro", mode="strict", scheme=IOB2)
    assert found["entity_f1"] == pytest.approx(expected)
    flat = [[tag for tags in lists for tag in tags] for lists in (gold, predicted)]
    assert found["character_f1"] == pytest.approx(np.mean([count_f1(*flat, tag) for tag in TAGS]))


def make_tags(rng):
    tags = ["O"]
    for _ in range(12):
        name = tags[-1].partition("-")[2]
        tags.append(rng.choice([*TAGS[::2][:1], "B-PS", "B-LC", *([f"I-{name}"] * 2 if name else [])]))
    return tags


def test_relations_are_scored_without_no_relation_and_by_the_area_under_the_curve():
    rng = np.random.default_rng(2)
    probabilities = rng.dirichlet(np.ones(4), 80).round(3)
    gold = [RELATIONS[number] for number in [0, 1, 2, 3, *rng.integers(0, 4, 76)]]
    predicted = [RELATIONS[row.argmax()] for row in probabilities]
    records = [
        {"gold": g, "predicted": p, "probabilities": dict(zip(RELATIONS, row.tolist(), strict=True))}
        for g, p, row in zip(gold, predicted, probabilities, strict=True)
    ]
    hits = sum(g == p != "no_relation" for g, p in zip(gold, predicted, strict=True))
    total = sum(label != "no_relation" for label in [*gold, *predicted])
    areas = [
        integrate_curve(np.array([name == label for name in gold]), probabilities[:, index])
        for index, label in enumerate(RELATIONS)
    ]
    expected = {"micro_f1": pytest.approx(2 * hits / total), "auprc": pytest.approx(np.mean(areas))}
    assert SCORERS["re"](records) == expected


def integrate_curve(is_gold, scores):
    """Trapezoids between the points of all thresholds, and the point with recall 0 and precision 1."""
    area, last_recall, last_precision = 0.0, 0.0, 1.0
    for threshold in sorted(set(scores), reverse=True):
        chosen = scores >= threshold
        recall, precision = is_gold[chosen].sum() / is_gold.sum(), is_gold[chosen].mean()
        area += (recall - last_recall) * (precision + last_precision) / 2
        last_recall, last_precision = recall, precision
    return area


ROUGE = {  # answer, reference, length of the longest common substring
    "equal": ("서울특별시", "서울특별시", 5), "part": ("서울", "서울특별시", 2), "none": ("부산", "서울", 0),
    "inside": ("약 30만 명", "30만 명이다", 5), "no answer": ("", "서울", 0),
}  # fmt: skip


@pytest.mark.parametrize("case", ROUGE)
def test_rouge_w_is_the_f1_of_the_longest_common_substring(case):
    answer, reference, size = ROUGE[case]
    precision, recall = (size / len(text) if text else 0.0 for text in (answer, reference))
    expected = 2 * precision * recall / (precision + recall) if size else 0.0
    assert math.isclose(compute_rouge_w(answer, reference), expected)


def test_answers_are_normalized_and_the_best_reference_counts():
    assert normalize_answer(' "ABC"  대학교. ') == "abc 대학교"
    records = [
        {"answer": "1914년.", "gold": ["1914", "1914년"]}, {"answer": "", "gold": []},
        {"answer": "서울", "gold": []}, {"answer": "부산", "gold": ["부산시"]},
    ]  # fmt: skip
    found = SCORERS["mrc"](records)
    assert found == {"exact_match": 0.5, "rouge_w": pytest.approx((1 + 1 + 0 + 0.8) / 4)}


# ---- the suite


def write_json(folder, task, make, wrap=lambda rows: rows):
    """Write the files of a task in KLUE's layout, version 1.1."""
    folder = folder / f"klue-{task}"
    folder.mkdir()
    prefix = "ynat" if task == "ynat" else f"klue-{task}"
    for seed, split in enumerate(("train", "dev")):
        text = json.dumps(wrap(make(12 + 12 * (seed == 0), seed)), ensure_ascii=False)
        (folder / f"{prefix}-v1.1_{split}.json").write_text(text, "utf-8")


def make_topics(count, seed):
    labels = load_dataset_specs()["klue-ynat"].labels
    return [
        {"guid": f"ynat-v1_{seed}_{n:05}", "title": f"{row['text']} 제{n}호", "label": labels[n % 7]}
        for n, row in enumerate(make_toy_rows(count, seed))
    ]  # fmt: skip


def make_pairs(task, count, seed):
    rows = []
    for n, row in enumerate(make_nli_rows(count, seed)):
        first, second = f"{row['premise']} {n}", f"{row['hypothesis']} {n}"
        guid = {"guid": f"klue-{task}-v1_{seed}_{n:05}"}
        if task == "sts":
            labels = {"label": n % 6, "real-label": n % 6 + 0.1, "binary-label": int(n % 6 >= 3)}
            rows.append(guid | {"sentence1": first, "sentence2": second, "labels": labels})
        else:
            label = ["entailment", "neutral", "contradiction"][n % 3]
            rows.append(guid | {"premise": first, "hypothesis": second, "gold_label": label})
    return rows


def make_relations(count, seed):
    names = ["no_relation", "per:title"]
    rows = make_relation_rows(count, seed)
    return [row | {"label": names[row["label"] == "first"], "sentence": row["sentence"]} for row in rows]


def make_articles(rows):
    """Return the rows of `make_questions` as the articles of a file."""
    return {"version": "v1.1", "data": rows}


def make_questions(count, seed):
    articles = []
    for n in range(count):
        context = f"the good film {n} was in seoul {seed}"
        answers = [{"text": "seoul", "answer_start": context.index("seoul")}] if n % 3 else []
        question = {
            "question": f"where was film {n}?", "answers": answers, "question_type": 1 if n % 3 else 3,
            "is_impossible": not answers, "guid": f"klue-mrc-v1_{seed}_{n:05}",
        }  # fmt: skip
        paragraph = {"context": context, "qas": [question]}
        articles.append({"title": str(n), "paragraphs": [paragraph], "news_category": None, "source": "x"})
    return articles


def write_entities(folder):
    """Write KLUE-NER: a comment with the sentence, then a line per character, also for spaces."""
    folder = folder / "klue-ner"
    folder.mkdir()
    for seed, split in enumerate(("train", "dev")):
        sentences = []
        for n in range(16):
            text = f"good{'abcdef'[n % 6]} was in ulm{n + seed}"
            tags = ["B-PS", "I-PS", "I-PS", "I-PS", *["O"] * (len(text) - 4)]
            lines = "".join(f"{char}\t{tag}\n" for char, tag in zip(text, tags, strict=True))
            sentences.append(f"## klue-ner-v1_{seed}_{n:05}-x\t<{text[:4]}:PS>{text[4:]}\n{lines}\n")
        (folder / f"klue-ner-v1.1_{split}.tsv").write_text("".join(sentences), "utf-8")


@pytest.fixture(scope="module")
def klue_data(tmp_path_factory):
    root = tmp_path_factory.mktemp("klue_data")
    write_json(root, "ynat", make_topics)
    write_json(root, "sts", lambda *args: make_pairs("sts", *args))
    write_json(root, "nli", lambda *args: make_pairs("nli", *args))
    write_json(root, "re", make_relations)
    write_json(root, "mrc", make_questions, make_articles)
    write_entities(root)
    return root


@slow_fixture
def complete_run(klue_data, tiny, tmp_path_factory):
    """Run all six tasks for one step each."""
    options = {"max_steps": 1, "batch_size": 8, "bf16": False, "max_length": 64, "pooling": "mean"}
    folder = tmp_path_factory.mktemp("klue") / "run"
    with costly_parts("linear_probe"):
        return bertkit.klue(model=str(tiny), data_dir=str(klue_data), output_dir=str(folder), **options)


def test_every_task_has_its_official_scores(complete_run):
    assert complete_run.metrics.get("failed") == {}
    for task in KLUE_TASKS:
        path = complete_run.output_dir / task.name / "seed0" / "predictions.jsonl"
        records = [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]
        scores = complete_run.metrics["tasks"][task.name]["validation"]
        expected = SCORERS[task.name](records)
        assert {name: scores[name] for name in expected} == expected
        assert [reported.metric for reported in task.scores] == list(expected)


def test_heads_for_whole_texts_have_the_pooling(complete_run):
    for task in KLUE_TASKS:
        settings = yaml.safe_load(
            (complete_run.output_dir / task.name / "seed0" / "run.yaml").read_text("utf-8")
        )
        expected = None if task.name in ("ner", "mrc") else "mean"
        assert settings["settings"].get("pooling") == expected


def test_the_table_has_the_published_scores(complete_run):
    text = (complete_run.output_dir / "README.md").read_text("utf-8")
    assert "KLUE-BERT-base (published)" in text
    for cells in ("| 85.73 |", "| 90.85 |", "| 83.97 |", "| 66.17 |", "| 68.51 |"):
        assert cells in text
    assert "Park et al. 2021" in text


def test_the_table_has_the_best_baseline_of_each_official_score_that_baselines_have(complete_run):
    text = (complete_run.output_dir / "README.md").read_text("utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if "|" in line]
    cells = {row[1]: row[3] for row in rows}
    assert cells["score"] == "baseline (dev)"
    for task, metric, name in (("ynat", "macro_f1", "f1"), ("nli", "accuracy", "accuracy")):
        baselines = complete_run.metrics["tasks"][task]["baselines"]
        assert {"majority", "linear_probe"} < set(baselines)
        best = max(scores[name] for scores in baselines.values() if name in scores)
        assert cells[metric] == f"{100 * best:.1f}"
    assert cells["pearson"]
    assert {cells[name] for name in ("paraphrase_f1", "entity_f1", "micro_f1", "auprc", "rouge_w")} == {""}


def test_predictions_have_the_identifiers_of_the_rows(complete_run):
    folder = complete_run.output_dir / "predictions"
    assert {path.stem for path in folder.iterdir()} == {task.name for task in KLUE_TASKS}
    for name, count in (("ynat", 12), ("mrc", 12), ("ner", 16)):
        records = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text("utf-8").splitlines()]
        assert len(records) == count
        assert all(list(record) == ["guid", "prediction"] for record in records)
    first = json.loads((folder / "re.jsonl").read_text("utf-8").splitlines()[0])
    assert first["guid"] == "re-0"


@pytest.mark.slow
def test_predictions_are_written_for_a_sample_of_the_rows(cli, klue_data, tiny, tmp_path):
    args = ["klue", "--model", tiny, "--data-dir", klue_data, "--tasks", "ynat", "--max-eval-samples", 5]
    status, _, err = cli(*args, "--max-steps", 1, "--no-bf16", "-o", tmp_path / "run")
    assert status == 0, err
    assert "leaderboard" not in err
    assert len((tmp_path / "run" / "predictions" / "ynat.jsonl").read_text("utf-8").splitlines()) == 5


@pytest.mark.slow
def test_missing_data_names_the_other_tasks(cli, no_hub, tiny, klue_data, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "klue-nli").symlink_to(klue_data / "klue-nli")
    args = ["klue", "--model", tiny, "--data-dir", tmp_path / "data", "-o", tmp_path / "run"]
    status, _, err = cli(*args, "--tasks", "nli,re")
    assert status == 2
    assert "no data for klue-re; run the others with --tasks nli" in err
    assert cli(*args, "--tasks", "dp")[0] == 2
