"""`bertkit distill`: a student learns the predictions of a finished run."""

import json
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import (
    ROW_MAKERS,
    assert_refused,
    make_toy_rows,
    read_predictions,
    save_tiny_model,
    slow_fixture,
    write_rows,
)
from safetensors.torch import load_file, save_file

import bertkit
from bertkit.commands.distill import resolve_student_settings
from bertkit.data.features import StoredLogits
from bertkit.methods.distill import DistillationLoss
from bertkit.models.forward import compute_logits
from bertkit.models.layers import choose_layers
from bertkit.models.losses import BinaryCrossEntropy, CrossEntropy, SquaredError
from bertkit.run.prepare import prepare
from bertkit.run_directory import RunDir
from bertkit.tasks import task_definition

TASKS = list(ROW_MAKERS)
INPUTS = {
    "classify": ["text"], "nli": ["premise", "hypothesis"], "ner": ["tokens"], "qa": ["question", "context"],
    "swag": ["context", "endings"],
}  # fmt: skip
SGD = {
    "optim": "sgd", "learning_rate": 0.05, "warmup": 0.0, "weight_decay": 0.0, "bf16": False,
    "attention_dropout": 0.0,
}  # fmt: skip


def write_unlabeled(path, task, count=20):
    """Write rows without labels that are not among those of the run."""
    rows = ROW_MAKERS[task](count, seed=5)
    return write_rows(path, [{name: row[name] for name in INPUTS[task]} for row in rows])


def weights(folder):
    return load_file(folder / "model.safetensors")


# ---- the loss


def kl(teacher, student, temperature):
    """KL divergence by its definition, summed over rows."""
    p, q = F.softmax(teacher / temperature, -1), F.softmax(student / temperature, -1)
    return (p * (p.log() - q.log())).sum()


def test_the_loss_is_the_formula():
    torch.manual_seed(0)
    student, teacher = torch.randn(2, 6, 4)
    batch = {"labels": torch.tensor([0, 1, 2, 3, 0, 1]), "teacher_logits": teacher.flatten()}
    loss = DistillationLoss(CrossEntropy(), alpha=0.3, temperature=2.0)
    sums, counts = loss.sum_losses(student, batch), loss.count_items(batch)
    expected = 0.3 * 4 * kl(teacher, student, 2.0) / 6 + 0.7 * F.cross_entropy(student, batch["labels"])
    assert float(sum(sums[part] / counts[part] for part in sums)) == pytest.approx(float(expected), rel=1e-5)


def test_positions_of_padding_and_missing_choices_do_not_count():
    torch.manual_seed(0)
    lengths, width = [3, 5], 5
    student, teacher = torch.randn(2, 2, 2, width)
    flat = torch.cat([teacher[row, :, :length].flatten() for row, length in enumerate(lengths)])
    for row, length in enumerate(lengths):
        student[row, :, length:] = -torch.inf
    student.requires_grad_()
    batch = {"labels": torch.zeros(2, 2, dtype=torch.long), "teacher_logits": flat}
    sums = DistillationLoss(CrossEntropy(), alpha=1.0, temperature=3.0).sum_losses(student, batch)
    expected = sum(
        9 * kl(teacher[row, :, :length], student[row, :, :length], 3.0) for row, length in enumerate(lengths)
    )
    assert float(sums["teacher"].detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    sum(sums.values()).backward()
    assert student.grad.isfinite().all()


def test_unlabeled_items_count_only_for_the_teacher():
    torch.manual_seed(0)
    student, teacher = torch.randn(2, 4, 3)
    batch = {"labels": torch.tensor([1, -100, 2, -100]), "teacher_logits": teacher.flatten()}
    loss = DistillationLoss(CrossEntropy(), alpha=0.5, temperature=1.0, has_unlabeled=True)
    sums, counts = loss.sum_losses(student, batch), loss.count_items(batch)
    assert {part: float(count) for part, count in counts.items()} == {"labels": 2, "teacher": 4}
    labeled = F.cross_entropy(student[[0, 2]], torch.tensor([1, 2]), reduction="sum")
    assert float(sums["labels"]) == pytest.approx(0.5 * float(labeled))
    assert float(sums["teacher"]) == pytest.approx(0.5 * float(kl(teacher, student, 1.0)), rel=1e-5)


def test_labels_of_sets_and_numbers_are_marked_as_unlabeled():
    for labels, label_loss, count in (
        (torch.tensor([[1, 0], [-100, -100]]), BinaryCrossEntropy(), 2),
        (torch.tensor([0.5, float("nan")]), SquaredError(), 1),
    ):
        loss = DistillationLoss(label_loss, alpha=0.5, temperature=2.0, has_unlabeled=True)
        logits = torch.randn(2, labels[0].numel(), requires_grad=True)
        batch = {"labels": labels, "teacher_logits": torch.randn(logits.numel())}
        counts, sums = loss.count_items(batch), loss.sum_losses(logits, batch)
        assert (float(counts["labels"]), float(counts["teacher"])) == (count, 2 * count)
        sum(sums.values()).backward()
        assert logits.grad.isfinite().all()


def test_label_sets_and_numbers_have_their_own_losses():
    torch.manual_seed(0)
    student, teacher = torch.randn(2, 5, 3)
    binary = BinaryCrossEntropy().sum_teacher_losses(student, teacher, 2.0)
    p, q = (teacher / 2).sigmoid(), (student / 2).sigmoid()
    assert float(binary) == pytest.approx(float(-4 * (p * q.log() + (1 - p) * (1 - q).log()).sum()), rel=1e-5)
    squared = SquaredError().sum_teacher_losses(student[:, :1], teacher[:, :1], 2.0)
    assert float(squared) == pytest.approx(float((student[:, 0] - teacher[:, 0]).square().sum()))


# ---- the student


@pytest.mark.parametrize(
    ("num_layers", "count", "expected"),
    [(12, 6, [0, 2, 4, 7, 9, 11]), (6, 3, [0, 2, 5]), (12, 1, [0]), (3, 2, [0, 2])],
)
def test_layers_are_evenly_spread(num_layers, count, expected):
    assert choose_layers(num_layers, count) == expected


def save_without_dropout(folder, num_layers):
    options = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return save_tiny_model(folder, num_hidden_layers=num_layers, **options)


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """A tiny BERT with four layers and without dropout."""
    return save_without_dropout(tmp_path_factory.mktemp("models") / "deep", 4)


@slow_fixture
def teacher(deep, tmp_path_factory):
    """A run of `deep`."""
    folder = tmp_path_factory.mktemp("teacher")
    data = write_rows(folder / "rows.jsonl", make_toy_rows(60))
    return bertkit.classify(
        data=data, model=deep, max_steps=2, output_dir=folder / "run", bf16=False
    ).output_dir


@pytest.mark.slow
def test_the_student_starts_with_the_layers_and_the_head_of_the_teacher(teacher, tmp_path):
    student = bertkit.distill(
        teacher, num_layers=2, max_steps=1, learning_rate=0.0, output_dir=tmp_path / "s"
    )
    teacher, copied = weights(teacher), weights(student.output_dir)
    renamed = {name.replace("layer.1.", "layer.3."): name for name in copied}
    assert set(renamed) == {name for name in teacher if "layer.1." not in name and "layer.2." not in name}
    assert all(torch.equal(teacher[old], copied[new]) for old, new in renamed.items())
    assert json.loads((student.output_dir / "config.json").read_text())["num_hidden_layers"] == 2


@pytest.mark.slow
def test_the_epochs_of_few_labeled_rows_are_not_those_of_many_unlabeled_rows(runs, tmp_path, monkeypatch):
    monkeypatch.setattr("bertkit.training.arguments.MIN_STEPS", 200)
    settings = {"run": str(runs / "classify"), "num_layers": 1}
    assert resolve_student_settings(settings)[1]["epochs"] == 2  # those of the teacher
    settings["data"] = str(write_unlabeled(tmp_path / "more.jsonl", "classify", 1_200))
    task, student = resolve_student_settings(settings)
    prepared = prepare(task, task_definition(task).config(**student))
    assert len(prepared.splits["train"]) < 100
    assert prepared.config.epochs == 4
    assert resolve_student_settings({**settings, "epochs": 3})[1]["epochs"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_each_task_has_students(runs, cli, tmp_path, task):
    data = write_unlabeled(tmp_path / "more.jsonl", task)
    student = tmp_path / "student"
    options = ["--num-layers", 1, "--data", data, "--epochs", 1]
    status, out, err = cli("distill", runs / task, *options, "-o", student)
    assert status == 0, err
    assert "20 unlabeled" in err
    assert all(word in out for word in ("teacher", "student", "parameters", "rows per second")), out
    metrics = json.loads((student / "metrics.json").read_text())
    teacher = json.loads((runs / task / "metrics.json").read_text())
    assert metrics["compared"]["validation"] == pytest.approx(teacher["validation"], abs=1e-6)
    models = metrics["distillation"]["models"]
    assert models["student"]["parameters"] < models["teacher"]["parameters"]
    assert metrics["distillation"]["unlabeled_rows"] == 20
    assert "other run" not in out
    for name in ("report.html", "README.md"):
        assert "rows per second" in (student / name).read_text("utf-8").lower()
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    assert len(list(bertkit.load(student).predict(rows))) == 20
    assert cli("evaluate", student, "-o", tmp_path / "evaluation")[0] == 0


@pytest.fixture(scope="module")
def student_settings(runs, tmp_path_factory):
    """Settings of a student that learns everything that a teacher can teach."""
    more = write_unlabeled(tmp_path_factory.mktemp("data") / "more.jsonl", "classify")
    return {
        "run": runs / "classify", "num_layers": 1, "data": more, "batch_size": 8, "epochs": 1,
        "save_steps": 3,
    }  # fmt: skip


@slow_fixture
def student(student_settings, tmp_path_factory):
    return bertkit.distill(**student_settings, output_dir=tmp_path_factory.mktemp("student")).output_dir


@pytest.mark.slow
@pytest.mark.usefixtures("onnx_exporter")
def test_a_student_is_evaluated_on_other_rows_and_exported_with_scores(student, cli, tmp_path):
    labeled = write_rows(tmp_path / "labeled.jsonl", make_toy_rows(20, seed=5))
    assert cli("evaluate", student, "--data", labeled, "-o", tmp_path / "evaluation")[0] == 0
    status, out, err = cli("export", student, "-o", tmp_path / "exported")
    assert status == 0, err
    assert "accuracy" in out
    assert "cannot load" not in err
    status, _, err = cli("distill", tmp_path / "exported", "--num-layers", "1")
    assert status == 2
    assert "exported: is an exported model; pass the run that it was exported from" in err


def make_teacher(kind, model, folder):
    """Train a teacher for another kind of labels."""
    rows = make_toy_rows(60)
    if kind == "regression":
        rows = [{**row, "label": len(row["text"]) / 50} for row in rows]
    if kind == "multi-label":
        rows = [{**row, "label": [row["label"], "long"][: 1 + len(row["text"]) // 40]} for row in rows]
    options = {"long_texts": "windows", "max_length": 8} if kind == "windows" else {"problem": kind}
    data = write_rows(folder.parent / f"{kind}.jsonl", rows)
    return bertkit.classify(data=data, model=model, epochs=1, output_dir=folder, bf16=False, **options)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["regression", "multi-label", "windows"])
def test_other_kinds_of_labels_have_students(tiny, tmp_path, kind):
    run = make_teacher(kind, tiny, tmp_path / "teacher")
    more = write_unlabeled(tmp_path / "more.jsonl", "classify")
    student = bertkit.distill(
        run.output_dir, num_layers=1, data=more, epochs=1, output_dir=tmp_path / "student"
    )
    assert np.isfinite(student.metrics["training"]["loss"])
    assert student.metrics["validation"].keys() == run.metrics["validation"].keys()


@pytest.mark.slow
def test_a_student_of_the_same_weights_learns_nothing_from_its_teacher(teacher, tmp_path):
    """With alpha 1, the gradient of a student that predicts like its teacher is 0."""
    student = bertkit.distill(
        teacher, student=teacher, alpha=1.0, max_steps=5,
        output_dir=tmp_path / "same", **SGD,
    )  # fmt: skip
    before, after = weights(teacher), weights(student.output_dir)
    assert max(float((before[name] - after[name]).abs().max()) for name in before) < 1e-5
    assert student.metrics["training"]["loss"] == pytest.approx(0, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["ner", "swag"])
def test_accumulation_gives_the_same_student(runs, tmp_path, task):
    shallow = save_without_dropout(tmp_path / "shallow", 1)
    more = write_unlabeled(tmp_path / "more.jsonl", task, 13)

    def distill(batch, steps):
        output = tmp_path / f"{batch}x{steps}"
        size = {"batch_size": batch, "gradient_accumulation_steps": steps}
        student = bertkit.distill(
            runs / task, student=shallow, data=more, epochs=1, output_dir=output,
            **size, **SGD,
        )  # fmt: skip
        return student.metrics["training"]["loss"], weights(student.output_dir)

    loss, whole = distill(8, 1)
    other_loss, other = distill(2, 4)
    assert other_loss == pytest.approx(loss, rel=1e-5)
    assert max(float((whole[name] - other[name]).abs().max()) for name in whole) < 1e-5


@pytest.mark.slow
def test_resume_is_bit_identical(student, student_settings, cli, tmp_path, stop_at, monkeypatch):
    flags = [(f"--{name.replace('_', '-')}", value) for name, value in student_settings.items()]
    args = ["distill", flags[0][1], *(word for flag in flags[1:] for word in flag)]
    parts = tmp_path / "parts"
    with monkeypatch.context():
        stop_at(5)
        status, _, err = cli(*args, "-o", parts)
    assert status == 130
    assert "bertkit classify --resume" in err
    computed = []
    monkeypatch.setattr(StoredLogits, "write", lambda *_: computed.append(1))
    status, _, err = cli("classify", "--resume", "-o", parts)
    assert status == 0, err
    assert computed == []  # the logits of the teacher are in the cache
    assert weights(student).keys() == weights(parts).keys()
    assert all(torch.equal(value, weights(parts)[name]) for name, value in weights(student).items())
    status, _, err = cli(*args, "-o", parts, "--resume")
    assert "already finished" in err


@pytest.mark.slow
def test_a_changed_file_of_unlabeled_rows_cannot_be_resumed(runs, cli, tmp_path, stop_at, monkeypatch):
    more = write_unlabeled(tmp_path / "more.jsonl", "classify")
    args = ["distill", runs / "classify", "--num-layers", 1, "--data", more, "--save-steps", 1]
    with monkeypatch.context():
        stop_at(2)
        assert cli(*args, "-o", tmp_path / "student")[0] == 130
    write_unlabeled(more, "classify", 21)
    status, _, err = cli("classify", "--resume", "-o", tmp_path / "student")
    assert status == 2
    assert "unlabeled was 20 rows" in err


# ---- the outputs of the teacher


def add_teacher_logits(prepared):
    """Return the training features with the logits of the teacher."""
    [method] = prepared.methods
    return method.precompute(prepared, None, prepared.features, None)["train"]


def prepare_student(run, **settings):
    name, resolved = resolve_student_settings({"run": str(run), "num_layers": 1, **settings})
    return prepare(name, task_definition(name).config(**resolved))


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_the_outputs_are_those_for_the_features_of_the_student(runs, tmp_path, task):
    """Each example gets the logits that the teacher predicts for it alone."""
    prepared = prepare_student(runs / task)
    features = add_teacher_logits(prepared)
    teacher = prepared.methods[0].load_teacher()
    collator = teacher.task.make_collator(teacher.tokenizer, teacher.model)
    device = next(teacher.model.parameters()).device
    for index in range(0, len(features), 7):
        item = features[index]
        batch = {name: tensor.to(device) for name, tensor in collator([item]).items()}
        with torch.no_grad():
            logits = compute_logits(teacher.model, batch)
        assert item["teacher_logits"] == pytest.approx(logits.flatten().cpu().numpy(), abs=1e-5)


@pytest.mark.slow
def test_the_outputs_are_computed_once(runs, monkeypatch):
    computed, original = [], StoredLogits.write
    monkeypatch.setattr(StoredLogits, "write", lambda *args: (computed.append(1), original(*args)))
    for temperature in (1.0, 4.0):
        add_teacher_logits(prepare_student(runs / "qa", temperature=temperature))
    assert computed == [1]
    add_teacher_logits(prepare_student(runs / "qa", max_length=16))
    assert computed == [1, 1]
    add_teacher_logits(prepare_student(runs / "qa", alpha=0.0))
    assert computed == [1, 1]


@pytest.mark.slow
def test_a_student_may_have_another_tokenizer_if_rows_have_one_output(runs, cli, tmp_path):
    other = save_tiny_model(tmp_path / "other", num_hidden_layers=1)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["normalizer"]["lowercase"] = False
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    student = bertkit.distill(runs / "swag", student=other, max_steps=1, output_dir=tmp_path / "student")
    assert student.metrics["distillation"]["models"]["student"]["rows_per_second"] > 0
    args = [runs / "ner", "--student", other, "-o", tmp_path / "ner"]
    assert_refused(cli, tmp_path, args, ["has another tokenizer than other"], "distill")


@pytest.mark.slow
def test_the_outputs_follow_the_order_of_the_student_labels(runs, tmp_path):
    """A teacher whose config lists the labels in another order teaches the same."""
    reordered = tmp_path / "teacher"
    shutil.copytree(runs / "nli", reordered)
    config = json.loads((reordered / "config.json").read_text())
    order = [2, 0, 1]
    names = [config["id2label"][str(index)] for index in order]
    config |= {
        "id2label": dict(enumerate(names)),
        "label2id": {name: index for index, name in enumerate(names)},
    }
    (reordered / "config.json").write_text(json.dumps(config))
    tensors = weights(reordered)
    save_file(
        tensors | {name: tensors[name][order] for name in ("classifier.weight", "classifier.bias")},
        reordered / "model.safetensors", {"format": "pt"},
    )  # fmt: skip
    plain = save_tiny_model(tmp_path / "plain", num_hidden_layers=1)
    losses = [
        bertkit.distill(
            run, student=plain, alpha=1.0, max_steps=3, output_dir=tmp_path / name, **SGD
        ).metrics["training"]["loss"]
        for name, run in (("one", runs / "nli"), ("two", reordered))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.slow
def test_an_ensemble_can_teach_if_it_has_not_seen_the_validation_rows(runs, tiny, tmp_path, cli):
    data = write_rows(tmp_path / "train.jsonl", make_toy_rows(40))
    validation = write_rows(tmp_path / "validation.jsonl", make_toy_rows(20, seed=9))
    options = {"model": tiny, "max_steps": 2, "bf16": False}
    run = bertkit.classify(data=data, validation=validation, output_dir=tmp_path / "run", **options)
    for name, source in (("with", run.output_dir), ("without", runs / "classify")):
        members = [tmp_path / name / f"seed{seed}" for seed in (0, 1)]
        for member in members:
            shutil.copytree(source, member)
        RunDir(tmp_path / name / "ensemble").write_members(members)
    student = bertkit.distill(tmp_path / "with", num_layers=1, max_steps=1, output_dir=tmp_path / "student")
    models = student.metrics["distillation"]["models"]
    assert models["teacher"]["megabytes"] > 2 * models["student"]["megabytes"]
    args = [tmp_path / "without", "--num-layers", 1, "-o", tmp_path / "refused"]
    assert_refused(cli, tmp_path, args, ["were trained on all labeled rows"], "distill")


# ---- settings and errors


@pytest.mark.slow
def test_the_settings_of_the_run_are_the_defaults(runs, cli, tmp_path):
    student = bertkit.distill(runs / "ner", num_layers=1, epochs=1, seed=3, output_dir=tmp_path / "student")
    settings, teacher = RunDir(student.output_dir).read_settings(), RunDir(runs / "ner").read_settings()
    assert (settings["epochs"], settings["seed"], settings["max_length"]) == (1, 3, teacher["max_length"])
    assert settings["num_layers"] == 1
    assert settings["split_seed"] == teacher.get("seed", 0)
    repeated = tmp_path / "repeated"
    status, _, err = cli("ner", "--recipe", student.output_dir / "run.yaml", "-o", repeated)
    assert status == 0, err
    one, two = weights(student.output_dir), weights(repeated)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_flags_replace_alternative_settings_of_the_run(runs, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs / "classify", run)
    text = (run / "run.yaml").read_text()
    (run / "run.yaml").write_text(text.replace("settings:\n", "settings:\n  max_steps: 3\n"))
    for flag, replaced in (("epochs", "max_steps"), ("tokens_per_batch", "batch_size")):
        _, plain = resolve_student_settings({"run": str(run), "num_layers": 1})
        _, settings = resolve_student_settings({"run": str(run), "num_layers": 1, flag: 64})
        assert plain.keys() - settings.keys() == {replaced}


def test_the_precision_of_the_run_is_not_that_of_the_student(runs):
    assert "bf16" in RunDir(runs / "classify").read_settings()
    _, settings = resolve_student_settings({"run": str(runs / "classify"), "num_layers": 1})
    assert "bf16" not in settings
    _, settings = resolve_student_settings({"run": str(runs / "classify"), "num_layers": 1, "bf16": False})
    assert settings["bf16"] is False


@pytest.mark.slow
def test_evaluation_rows_are_left_out_of_the_unlabeled_rows(runs, cli, tmp_path):
    texts = [{"text": record["text"]} for record in read_predictions(runs / "classify")]
    rows = [*texts, *({"text": row["text"]} for row in make_toy_rows(10, seed=5))]
    args = ["--num-layers", 1, "--data", write_rows(tmp_path / "more.jsonl", rows), "--dry-run"]
    status, _, err = cli("distill", runs / "classify", *args)
    assert status == 0, err
    assert f"10 unlabeled rows from {tmp_path / 'more.jsonl'} ({len(texts)} left out" in err


REFUSALS = {
    "no run": (["nowhere", "--num-layers", 1], ["nowhere", "is not a finished run"]),
    "no student": ([], ["--num-layers and --student", "exactly one"]),
    "two students": (["--num-layers", 1, "--student", "minilm"], ["exactly one"]),
    "too many layers": (["--num-layers", 2], ["--num-layers 2", "has 2 layers"]),
    "alpha": (["--num-layers", 1, "--alpha", 1.5], ["--alpha"]),
    "temperature": (["--num-layers", 1, "--temperature", 0], ["--temperature"]),
    "useless data": (["--num-layers", 1, "--alpha", 0, "--data", "x.jsonl"], ["--data", "--alpha 0"]),
    "missing data": (["--num-layers", 1, "--data", "x.jsonl"], ["x.jsonl", "no such file"]),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_refusals(runs, cli, tmp_path, kind):
    args, words = REFUSALS[kind]
    args = args if kind == "no run" else [runs / "classify", *args]
    assert_refused(cli, tmp_path, [*args, "-o", tmp_path / "student"], words, "distill")


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
def test_a_student_cannot_replace_its_teacher(runs, cli, tmp_path, overwrite):
    run = tmp_path / "run"
    shutil.copytree(runs / "classify", run)
    args = ["distill", run, "--num-layers", "1", "-o", tmp_path / "other" / ".." / "run", *overwrite]
    status, _, err = cli(*args)
    assert status == 2
    assert "is the run of the teacher; choose another directory" in err
    assert (run / "metrics.json").exists()


@pytest.mark.slow
def test_a_calibrated_run_can_teach(runs, cli, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs / "classify", run)
    rows = make_toy_rows(40, seed=4)
    names = sorted({row["label"] for row in rows})
    predictions = bertkit.predict(run, text=[row["text"] for row in rows], all_scores=True)
    for number, (row, record) in enumerate(zip(rows, predictions, strict=True)):
        ranked = sorted(names, key=record["probabilities"].__getitem__)
        row["label"] = ranked[-1 if number % 5 else 0]  # most predictions are correct, but not all
    status, _, err = cli("calibrate", run, "--data", write_rows(tmp_path / "new.jsonl", rows))
    assert status == 0, err
    args = ["--num-layers", "1", "--max-steps", "1", "-o", tmp_path / "student"]
    status, _, err = cli("distill", run, *args)
    assert status == 0, err
    assert "| accuracy |" in (tmp_path / "student" / "README.md").read_text()


@pytest.mark.slow
def test_pretraining_and_missing_data_are_refused(runs, cli, tmp_path):
    args = ["--num-layers", 1, "-o", tmp_path / "student"]
    assert_refused(cli, tmp_path, [runs / "pretrain-mlm-nsp", *args], ["is a run of pre-training"], "distill")
    run = tmp_path / "run"
    shutil.copytree(runs / "classify", run)
    settings = (run / "run.yaml").read_text()
    (run / "run.yaml").write_text(settings.replace("classify.jsonl", "gone.jsonl"))
    assert_refused(cli, tmp_path, [run, *args], ["gone.jsonl does not exist"], "distill")
    other = write_rows(tmp_path / "classify.jsonl", make_toy_rows(60, seed=4))
    (run / "run.yaml").write_text(settings.replace(str(runs / "classify.jsonl"), str(other)))
    assert_refused(cli, tmp_path, [run, *args], ["the data of this run has changed"], "distill")


@pytest.mark.slow
def test_num_layers_without_a_teacher(deep, toy, cli, tmp_path):
    run = bertkit.classify(data=toy, model=deep, num_layers=2, max_steps=1, output_dir=tmp_path / "run")
    assert json.loads((run.output_dir / "config.json").read_text())["num_hidden_layers"] == 2
    assert run.metrics["model"] == "deep-2-layers"
    args = ["--data", toy, "--model", deep, "--num-layers", 4, "-o", tmp_path / "refused"]
    assert_refused(cli, tmp_path, args, ["--num-layers 4", "deep has 4 layers"])
