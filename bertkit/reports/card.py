"""Model cards: the file `README.md` of a run directory, and its version for the Hub."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertkit.errors import format_count
from bertkit.run_directory import EXTRA_SPLITS
from bertkit.settings.recipes import serialize_settings
from bertkit.stats.scope_score import RECALL
from bertkit.stats.slices import MIN_SLICE_ROWS, format_p_value
from bertkit.tasks.base import Task
from bertkit.utils.text import dump_yaml, format_signed

# Values of --long-texts that the pipelines of transformers do not support.
BERTKIT_ONLY_LONG_TEXTS = ("windows", "head+tail")

OVERLAP_CAVEAT = (
    "Training rows that are also evaluation rows were kept (`--keep-overlap`). If there are any, the scores "
    "are too high."
)
PIPELINE_TEMPLATE = """from transformers import pipeline

model = pipeline({options})
model({call})"""
LOAD_TEMPLATE = """import bertkit

model = bertkit.load({path!r})
list(model.predict([{example}]))"""

# These patterns find the path of the run in code that was made from the templates above.
QUOTED_STRING = r"""('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")"""  # as `repr` writes it
PIPELINE_CALL = re.compile(rf"(pipeline\('[\w-]+', ){QUOTED_STRING}")
CALIBRATION_SECTION = re.compile(r"^## Calibration\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
SCOPE_PARAGRAPH = re.compile(r"^bertkit marks texts that seem to belong to no class.*\n\n", re.MULTILINE)
STUDY_ADVICE = re.compile(rf"(bertkit study [\w-]+ --recipe )(?:{QUOTED_STRING}|\S+)(?P<end> --folds)")
CALIBRATION_ADVICE = re.compile(r"(; run bertkit calibrate ).*\.$", re.MULTILINE)
LOAD_CALL = re.compile(rf"bertkit\.load\({QUOTED_STRING}\)")


def build_model_card(
    folder: Path, metrics: Mapping[str, Any], task: Task, provenance: Mapping[str, Any]
) -> str:
    """Return the model card in Markdown: data, scores, usage, settings and versions."""
    settings, data, training = serialize_settings(task.config), metrics["data"], metrics["training"]
    validation_rows = format_count(data["validation"], f"validation {task.definition.unit}")
    details = format_detail_rows(metrics)
    parts = [
        f"# {folder.name}",
        f"`{metrics['model']}` {task.training_phrase} `{metrics['task']}` on `{data['name']}` "
        f"({data['source']}; {data['train']:,} training and {validation_rows}; "
        f"fingerprint `{data['fingerprint']}`).",
        f"Task: {task.describe()}.",
        f"Training: {training['seconds']:.0f} s, {training['examples_per_second']:.1f} examples/s in "
        f"{training['precision']}.",
        "## Scores\n\n" + format_score_table(metrics),
        " ".join(list_judgement(metrics)),
        format_scope(metrics["out_of_scope"]["validation"]) if "out_of_scope" in metrics else "",
        OVERLAP_CAVEAT if settings.get("keep_overlap") else "",
        format_markdown_table(details[0], details[1:]) if details else "",
        format_distillation_table(metrics),
        "## Use\n\n```python\n" + _format_usage(folder, task, settings) + "\n```",
        _describe_long_texts(task, settings),
        "## Settings\n\n```yaml\n" + dump_yaml(dict(settings)) + "```",
        "## Provenance\n\n```yaml\n" + dump_yaml(dict(provenance)) + "```",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


# ---- tables


def format_markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; labels and names of scores may contain any characters."""
    escaped = [[" ".join(cell.split()).replace("|", "\\|") for cell in cells] for cells in (header, *rows)]
    lines = ["| " + " | ".join(cells) + " |" for cells in escaped]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])


def format_baseline_names(metrics: Mapping[str, Any]) -> list[str]:
    """Return the names of the baselines, with the number of training rows if they are fitted on a sample."""
    sampled = metrics.get("baseline_rows", {})
    return [
        f"{name} (fitted on {sampled[name]:,} rows)" if name in sampled else name
        for name in metrics["baselines"]
    ]


def format_score_rows(metrics: Mapping[str, Any]) -> list[list[str]]:
    """Return name, value, interval and the values of the baselines for each score of the validation split."""
    rows = []
    for name, value in metrics["validation"].items():
        interval = metrics["intervals"].get(name)
        rows.append([
            name, f"{value:.3f}", "{:.3f} to {:.3f}".format(*interval) if interval else "",
            *(f"{scores[name]:.3f}" if name in scores else "" for scores in metrics["baselines"].values()),
        ])  # fmt: skip
    return rows


def format_score_table(metrics: Mapping[str, Any]) -> str:
    """Return a Markdown table of the validation scores and baselines, and a line for each other split."""
    header = ["validation", "score", "95 % interval", *format_baseline_names(metrics)]
    parts = [format_markdown_table(header, format_score_rows(metrics))]
    for split in EXTRA_SPLITS:
        if metrics.get(split):
            scores = ", ".join(f"{name} {value:.3f}" for name, value in metrics[split].items())
            parts.append(f"\n{split}: {scores}")
    return "\n".join(parts)


def list_judgement(metrics: Mapping[str, Any], is_calibrated: bool = False) -> list[str]:
    """Return the sentences of the judgement; empty for a run without baselines.

    The sentence on overconfidence is left out if the run was calibrated afterwards.
    """
    judgement = metrics.get("judgement", {})
    names = ["text"] if is_calibrated else ["text", "calibration"]
    return [judgement[name] for name in names if name in judgement]


def format_comparison_rows(metrics: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return (name, score of the other run, difference, its interval, p-value and test) of each score."""
    comparison = metrics.get("compared", {})
    rows: list[tuple[str, ...]] = []
    for name, result in comparison.get("difference", {}).items():
        other_score = f"{comparison['validation'][name]:.3f}"
        difference = format_signed(result["difference"], "+.3f")
        interval = " to ".join(format_signed(bound, "+.3f") for bound in result["interval"])
        rows.append((name, other_score, difference, interval, f"{result['p']:.3g} ({result['test']})"))
    return rows


def name_compared_run(metrics: Mapping[str, Any]) -> str:
    """Return the heading for the scores of the run with which a run is compared."""
    return "teacher" if "distillation" in metrics else "other run"


def format_distillation_rows(metrics: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return (name, value of the teacher, value of the student) for size and speed; empty for other runs."""
    if "distillation" not in metrics:
        return []
    models = metrics["distillation"]["models"]
    teacher, student = models["teacher"], models["student"]
    formats = {
        "parameters": "{parameters:,}", "size in MB": "{megabytes:,.1f}",
        "rows per second": "{rows_per_second:,.1f}",
    }  # fmt: skip
    return [(name, text.format(**teacher), text.format(**student)) for name, text in formats.items()]


def format_distillation_table(metrics: Mapping[str, Any]) -> str:
    """Return the scores, the size and the speed of teacher and student in Markdown; empty for other runs."""
    if "distillation" not in metrics:
        return ""
    settings, scores = metrics["distillation"], metrics["validation"]
    rows = [
        (name, f"{value:.3f}", f"{scores[name]:.3f}")
        for name, value in metrics["compared"]["validation"].items()
        if name in scores  # only a calibrated teacher has scores of its prediction sets
    ]
    table = format_markdown_table(
        ["validation", "teacher", "this model"], [*rows, *format_distillation_rows(metrics)]
    )
    unlabeled = settings["unlabeled_rows"]
    count = f" and on {format_count(unlabeled, 'unlabeled row')}" if unlabeled else ""
    return (
        f"## Teacher\n\nThis model learned the predictions of `{settings['teacher']}` on the training rows"
        f"{count} (temperature {settings['temperature']:g}, alpha {settings['alpha']:g}).\n\n"
        f"{table}"
    )


def format_detail_rows(metrics: Mapping[str, Any]) -> list[list[str]]:
    """Return the scores of each label or entity type, after a row with their names; empty without details."""
    details = metrics.get("details", {}).get("validation", {})
    rows = [
        [label, *(f"{value:,}" if isinstance(value, int) else f"{value:.3f}" for value in scores.values())]
        for label, scores in details.items()
    ]
    return [["validation", *next(iter(details.values()))], *rows] if details else []


# ---- slices


def format_slice_tables(metrics: Mapping[str, Any]) -> list[list[list[str]]]:
    """Return a table of the slices of each column, whose first row has the headings."""
    tables = []
    for column, parts in metrics.get("slices", {}).items():
        metric = parts[0]["metric"]
        table = [[column, "rows", metric, "95 % interval", "difference", "p-value"]]
        for part in parts:
            score, interval, found = (
                part["scores"].get(metric),
                part["intervals"].get(metric),
                part["difference"],
            )
            table.append([
                part["value"], f"{part['rows']:,}", "" if score is None else f"{score:.3f}",
                "{:.3f} to {:.3f}".format(*interval) if interval else "",
                format_signed(found["difference"], "+.3f") if found else "",
                format_p_value(found["p"]) if found else "",
            ])  # fmt: skip
        tables.append(table)
    return tables


def describe_slices(metrics: Mapping[str, Any]) -> str:
    """Return a sentence on the worst slice."""
    if "worst_slice" in metrics:
        return str(metrics["worst_slice"]["text"])
    parts = [part for column in metrics["slices"].values() for part in column]
    if any(part["difference"] for part in parts):
        return "No slice is worse than the other rows."
    return f"No slice is tested: none has {MIN_SLICE_ROWS} rows, with as many other rows."


# ---- usage


def _format_usage(folder: Path, task: Task, settings: Mapping[str, Any]) -> str:
    """Return Python code that loads the model; the code uses transformers if its predictions are the same."""
    example = task.input_schema.make_example_row()
    load_code = LOAD_TEMPLATE.format(path=str(folder), example=example)
    pipeline = task.pipeline
    if pipeline.caveat is not None or settings.get("long_texts") in BERTKIT_ONLY_LONG_TEXTS:
        return load_code
    is_pair = len(task.input_schema.text_columns) == 2
    pair = dict(zip(("text", "text_pair"), example.values(), strict=False))
    inputs = repr(pair if is_pair else pipeline.example_input)
    options = [repr(pipeline.task), repr(str(folder)), *_format_kwargs(pipeline.init_kwargs)]
    call = [inputs, *_format_kwargs(pipeline.call_kwargs)]
    pipeline_code = PIPELINE_TEMPLATE.format(options=", ".join(options), call=", ".join(call))
    if not task.uses_windows:
        return pipeline_code
    return f"{load_code}\n\n# without bertkit: only for texts that fit into one window\n{pipeline_code}"


def _format_kwargs(kwargs: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value!r}" for name, value in kwargs.items()]


def _describe_long_texts(task: Task, settings: Mapping[str, Any]) -> str:
    """Describe how bertkit and transformers handle texts that are longer than the maximum length."""
    max_length, long_texts = settings.get("max_length"), settings.get("long_texts", "head")
    if max_length is None:  # a linear model of texts
        return f"Texts of any length are read as a whole. `transformers.pipeline` {task.pipeline.caveat}."
    if task.definition.resamples_examples:
        return f"Training examples had up to {max_length} tokens."
    if caveat := task.pipeline.caveat:
        treatment = "split into windows" if task.uses_windows else "truncated"
        return f"`transformers.pipeline` {caveat}. Texts longer than {max_length} tokens are {treatment}."
    if long_texts in BERTKIT_ONLY_LONG_TEXTS:
        return (
            f"With `bertkit.load`, texts longer than {max_length} tokens are handled as in training "
            f"(`--long-texts {long_texts}`). `transformers.pipeline` would truncate them."
        )
    if task.uses_windows:
        return (
            f"`bertkit.load` splits texts longer than {max_length} tokens into windows, and merges the "
            "predictions into valid ones. `transformers.pipeline` does neither."
        )
    return (
        f"Texts longer than {max_length} tokens are truncated. In the pipeline, `truncation=True` truncates "
        "them as in training."
    )


# ---- calibration


def add_calibration(card: str, calibration: Mapping[str, Any]) -> str:
    """Return the card with a section on the calibration of the run; it replaces an earlier section."""
    card = SCOPE_PARAGRAPH.sub("", CALIBRATION_SECTION.sub("", card))
    data, scores = calibration["data"], calibration["scores"]
    rows = [
        [name, f"{value:.3f}", f"{scores['after'][name]:.3f}"] for name, value in scores["before"].items()
    ]
    source = f"fitted on {format_count(data['rows'], 'row')} of `{data['name']}` ({data['source']})"
    if "temperature" in calibration:
        what = (
            f"The logits of the trained model are divided by {calibration['temperature']:.3f}, a temperature "
            f"that was {source}. The output layer contains it."
        )
    elif inverse := calibration.get("inverse_temperature"):
        what = (
            f"The logits are divided by a temperature T that depends on their margin m: 1 / T = "
            f"{inverse['intercept']:.3f} + {inverse['slope']:.3f} m. It was {source}. The output layer "
            f"approximates it, which changed {calibration['changed_fraction']:.1%} of the predicted labels."
        )
    else:
        what = f"The probability that an answer is right was {source}."
    section = (
        f"## Calibration\n\n{what} The scores after calibration are cross-fitted.\n"
        "\n" + format_markdown_table(["", "before", "after"], rows) + "\n\n"
    )
    if threshold := calibration.get("threshold"):
        values = ", ".join(f"`{label}` {value:.3f}" for label, value in threshold["thresholds"].items())
        section += (
            f"bertkit predicts a label if its probability exceeds a threshold ({threshold['criterion']}): "
            f"{values}. `transformers.pipeline` ignores the thresholds.\n\n"
        )
    if abstention := calibration.get("abstention"):
        scores = abstention["scores"]["after"]
        section += (
            f"bertkit marks a prediction as `abstained` if its confidence is below "
            f"{abstention['min_confidence']:.3f}. It answers {scores['coverage']:.1%} of the rows, with an "
            f"accuracy of {scores['answered_accuracy']:.3f}.\n\n"
        )
    if scope := calibration.get("out_of_scope"):
        section += f"{format_scope(scope)}\n\n"
    before, heading, after = card.partition("## Use\n")
    return f"{before}{section}{heading}{after}" if heading else f"{card.rstrip()}\n\n{section.rstrip()}\n"


def describe_found(found: Mapping[str, Any]) -> str:
    """Return how many texts of no class a model finds, and how many rows of the classes it accepts."""
    low, high = found["interval"]
    line = (
        f"{found[RECALL]:.1%} ({low:.1%} to {high:.1%}) of {format_count(found['texts'], 'text')} are found"
    )
    return (
        f"{line}; {found['coverage']:.1%} of the rows in scope are accepted" if "coverage" in found else line
    )


def format_scope(found: Mapping[str, Any]) -> str:
    """Return a paragraph on texts out of scope; see `SCOPE_PARAGRAPH`."""
    return (
        "bertkit marks texts that seem to belong to no class as `out_of_scope`. Cross-fitted on such texts, "
        f"{describe_found(found)}. `transformers.pipeline` gives the plain probabilities."
    )


# ---- for a copy, and for the Hub


def rewrite_for_copy(card: str, folder: Path) -> str:
    """Return the card with another run directory in its title and its code."""
    _, _, body = card.partition("\n")
    body = PIPELINE_CALL.sub(lambda match: match[1] + repr(str(folder)), body)
    body = LOAD_CALL.sub(lambda _: f"bertkit.load({str(folder)!r})", body)
    return f"# {folder.name}\n{body}"


def rewrite_for_hub(card: str, repo: str) -> str:
    """Return the card with the repository `ORG/NAME` in place of the run directory."""
    _, _, body = card.partition("\n")  # the title is the name of the run directory
    body = PIPELINE_CALL.sub(lambda match: match[1] + repr(repo), body)
    body = STUDY_ADVICE.sub(r"\1RUN/run.yaml\g<end>", body)
    body = CALIBRATION_ADVICE.sub(r"\1RUN.", body)
    body = LOAD_CALL.sub(f"bertkit.load(snapshot_download({repo!r}))", body)
    body = body.replace(
        "import bertkit\n", "import bertkit\nfrom huggingface_hub import snapshot_download\n", 1
    )
    return f"# {repo.partition('/')[2]}\n{body}"
