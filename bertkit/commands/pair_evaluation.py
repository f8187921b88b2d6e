"""`evaluate --minimal-pairs`: whether a language model prefers the acceptable sentence of each pair."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from bertkit.charts import plot_intervals
from bertkit.commands.configs import EvaluateConfig
from bertkit.data.table import fingerprint_splits
from bertkit.errors import UserError
from bertkit.models.forward import prepare_for_inference
from bertkit.models.loading import (
    find_model,
    load_config,
    load_tokenizer,
    load_with_trained_head,
    require_embeddings,
)
from bertkit.models.pooling import is_causal
from bertkit.models.pretraining import add_masked_position_hook
from bertkit.models.replaced_tokens import find_generator
from bertkit.reports.page import render_template
from bertkit.reports.tables import ResultTable
from bertkit.run.load_data import load_data, require_same_data, split_parsed_rows
from bertkit.run.prepare import UNK_WARNING_FRACTION
from bertkit.run.results import Run
from bertkit.run_directory import RunDir, create_default_directory
from bertkit.settings.declaration import get_flag, get_settings
from bertkit.stats.scores import count_tokens
from bertkit.tasks.pretrain.config import PRETRAIN
from bertkit.tasks.pretrain.minimal_pairs import (
    BAD,
    GOOD,
    MinimalPairs,
    compute_log_likelihoods,
    compute_unigram_scores,
    describe_minimal_pairs,
    find_correct,
    load_minimal_pairs,
    summarize_correct,
    summarize_groups,
    tokenize_pairs,
)
from bertkit.tasks.trained_model import load_run_task
from bertkit.utils import devices
from bertkit.utils.console import out_console, to_plain_text
from bertkit.utils.files import (
    OutputKind,
    check_output_directory,
    expand_home,
    stage_files,
    write_jsonl,
    write_text,
)
from bertkit.utils.reporting import report_info, report_warning, silence_libraries, silence_reports
from bertkit.utils.system import get_launched_world_size

RESULTS_FILE, PAIRS_FILE = "minimal_pairs.json", "pairs.jsonl"
FILES = {RESULTS_FILE, PAIRS_FILE, RunDir.REPORT_FILE}
KIND = OutputKind(
    "an evaluation of minimal pairs", "pass --overwrite to replace it", lambda names: names - FILES
)
# What else applies: every other setting is about labeled rows.
USED_SETTINGS = {
    "run", "minimal_pairs", "encoding", "delimiter", "header", "max_eval_samples", "batch_size", "device",
    "output_dir", "overwrite",
}  # fmt: skip
MODEL_HINT = "use a pre-trained model (bert-base-uncased) or a run of bertkit pretrain-mlm-nsp"
NUM_ERRORS = 20  # wrong pairs on the page
SAMPLE_SEED = 0


def evaluate_minimal_pairs(config: EvaluateConfig, dialect: Any) -> Run:
    """Score the pairs, and write `minimal_pairs.json`, `pairs.jsonl` and the page."""
    for name, (_, metadata, default) in get_settings(EvaluateConfig).items():
        if name not in USED_SETTINGS and getattr(config, name) not in (default, [], ()):
            raise UserError(f"{get_flag(name, metadata)}: does not apply to --minimal-pairs; omit it")
    if get_launched_world_size() > 1:
        raise UserError("--minimal-pairs: runs in one process; omit --nproc, and start it without torchrun")
    folder = expand_home(config.output_dir) if config.output_dir else None
    if folder:
        check_output_directory(folder, KIND, config.overwrite)
    pairs = load_minimal_pairs(expand_home(str(config.minimal_pairs)), "--minimal-pairs", dialect)
    pairs = pairs.sample(config.max_eval_samples, SAMPLE_SEED)
    with silence_libraries():
        metrics, records = _score(config, pairs)
    folder = folder or create_default_directory("evaluate", Path(metrics["model"]).name, pairs.name)
    folder.mkdir(parents=True, exist_ok=True)
    with stage_files(folder, "the evaluation", "free disk space") as staging:
        write_jsonl(staging / PAIRS_FILE, records)
        write_text(staging / RunDir.REPORT_FILE, _render_page(metrics, records))
        write_text(staging / RESULTS_FILE, json.dumps(metrics, indent=2, ensure_ascii=False) + "\n")
    return Run(folder, metrics)


def _score(config: EvaluateConfig, pairs: MinimalPairs) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    RunDir(expand_home(config.run)).refuse_ensemble()
    source = find_model(config.run, "RUN", alternative="a path or a run of bertkit pretrain-mlm-nsp")
    source = replace(source, name=config.run if expand_home(config.run).exists() else source.name)
    model_config, tokenizer = load_config(source), load_tokenizer(source)
    require_embeddings(source, model_config, tokenizer)
    causal = is_causal(model_config)
    if not causal and tokenizer.mask_token_id is None:
        raise UserError(f"RUN {source.name}: its tokenizer has no mask token; {MODEL_HINT}")
    tokenized = tokenize_pairs(pairs, tokenizer, model_config, source.name)
    generator = find_generator(source)
    hint = f"use its generator, {generator.folder}" if generator else MODEL_HINT
    auto_class = AutoModelForCausalLM if causal else AutoModelForMaskedLM
    head = "left-to-right LM head" if causal else "masked LM head"
    model = load_with_trained_head(auto_class, source, model_config, head, hint)
    model = add_masked_position_hook(prepare_for_inference(model))
    devices.report_device()
    report_info(f"minimal pairs: {describe_minimal_pairs(pairs)}")
    if tokenized.unk_fraction > UNK_WARNING_FRACTION:
        report_warning(f"{tokenized.unk_fraction:.0%} of the tokens of the pairs are [UNK] for {source.name}")
    started = time.perf_counter()
    scores = compute_log_likelihoods(model, tokenizer, tokenized, config.batch_size)
    seconds = time.perf_counter() - started
    good, bad = tokenized.good, tokenized.bad
    counts, counted = _count_training_tokens(Path(config.run))
    unigram = compute_unigram_scores(tokenized, tokenizer, counts)
    lengths = np.array([-len(ids) for ids in tokenized.input_ids])
    is_correct = find_correct(scores[good], scores[bad])
    phenomena = summarize_groups(is_correct, pairs.phenomena)
    baselines = {
        "unigram": {**summarize_correct(find_correct(unigram[good], unigram[bad])), "tokens": counted},
        "length": summarize_correct(find_correct(lengths[good], lengths[bad])),
    }
    for name, values in (("unigram", unigram), ("length", lengths)):
        baselines[name]["ties"] = float((values[good] == values[bad]).mean())
    metrics = {
        "model": config.run,
        "data": {"name": pairs.name, "source": pairs.source, "fingerprint": pairs.fingerprint},
        "score": "log-likelihood" if causal else "pseudo-log-likelihood",
        **summarize_correct(is_correct),
        "mean_over_phenomena": float(np.mean([group["accuracy"] for group in phenomena.values()])),
        "ties": float((scores[good] == scores[bad]).mean()),
        "fields": summarize_groups(is_correct, pairs.fields) if pairs.fields else {},
        "phenomena": phenomena,
        "baselines": baselines,
        "seconds": seconds,
        "pairs_per_second": len(good) / seconds,
    }
    records = [
        {
            "id": index, "phenomenon": pairs.phenomena[index],
            **({"field": pairs.fields[index]} if pairs.fields else {}),
            GOOD: pairs.rows[GOOD][index], BAD: pairs.rows[BAD][index],
            "score_good": float(scores[good[index]]), "score_bad": float(scores[bad[index]]),
            "correct": bool(is_correct[index]),
        }
        for index in range(len(good))
    ]  # fmt: skip
    return metrics, records


def _count_training_tokens(run: Path) -> tuple[np.ndarray | None, str]:
    """Return how often the training text of a run has each token [vocabulary], and what was counted.

    The counts are None if there is no such text; the baseline then counts the tokens of the pairs.
    """
    fallback = "the sentences of the pairs"
    if not (run / RunDir.SETTINGS_FILE).is_file():
        return None, fallback
    try:
        task = load_run_task(run)
        if task.definition is not PRETRAIN:
            return None, fallback
        with silence_reports():
            data = load_data(PRETRAIN.name, task.config.use_run_as_model(run))
            splits = split_parsed_rows(data.task, data.dataset)
        require_same_data(run, fingerprint_splits(splits))
    except UserError as error:
        report_info(
            f"the baseline unigram counts the tokens of the pairs, because of the training text: {error}"
        )
        return None, fallback
    counts: np.ndarray = count_tokens(*data.task.state.corpus_set.locate_documents(splits["train"]))
    return counts, "the training text"


# ---- what people read


def _format_group(name: str, group: Mapping[str, Any]) -> list[str]:
    low, high = (f"{100 * bound:.1f}" for bound in group["interval"])
    return [name, f"{group['pairs']:,}", f"{100 * group['accuracy']:.1f}", f"{low} to {high}"]


HEADINGS = ("", "pairs", "accuracy", "95 % interval")


def _list_totals(metrics: Mapping[str, Any]) -> list[list[str]]:
    baselines = metrics["baselines"].items()
    return [
        _format_group("all pairs", metrics),
        *(_format_group(f"baseline {name}", group) for name, group in baselines),
    ]


def _render_page(metrics: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> str:
    def build_table(title: str, rows: Sequence[Sequence[str]], caption: str) -> ResultTable:
        return ResultTable(title, HEADINGS, rows, caption, ())

    def list_groups(key: str) -> list[list[str]]:
        return [_format_group(name, group) for name, group in metrics[key].items()]

    baselines = metrics["baselines"]
    tables = {
        "Scores": build_table(
            "Scores", _list_totals(metrics),
            f"Percent of the pairs whose good sentence has the higher {metrics['score']}; a tie is wrong. "
            f"The mean over the phenomena is {100 * metrics['mean_over_phenomena']:.1f}. The baseline "
            f"unigram adds the log-frequencies of the tokens in {baselines['unigram']['tokens']}, and ties "
            f"in {baselines['unigram']['ties']:.0%} of the pairs. The baseline length prefers the sentence "
            f"with fewer tokens, and ties in {baselines['length']['ties']:.0%}. Intervals are Wilson's.",
        ),
        **({"Fields": build_table("Fields", list_groups("fields"), "")} if metrics["fields"] else {}),
        "Phenomena": build_table("Phenomena", list_groups("phenomena"), ""),
    }  # fmt: skip
    wrong = [record for record in records if not record["correct"]]
    wrong.sort(key=lambda record: record["score_good"] - record["score_bad"])
    tables["Errors"] = ResultTable(
        "Errors", ("phenomenon", "good", "bad", "difference"),
        [
            [
                record["phenomenon"], record[GOOD], record[BAD],
                f"{record['score_good'] - record['score_bad']:.2f}",
            ]
            for record in wrong[:NUM_ERRORS]
        ],
        f"The {min(NUM_ERRORS, len(wrong))} of {len(wrong):,} wrong pairs with the largest difference "
        f"between the scores, in nats. {PAIRS_FILE} has all pairs.", (), text_columns=3,
    )  # fmt: skip
    groups = metrics["fields"] if len(metrics["fields"]) > 1 else metrics["phenomena"]
    chart = plot_intervals(
        "Accuracy", {name: group["accuracy"] for name, group in groups.items()},
        {name: group["interval"] for name, group in groups.items()}, "accuracy", 0.5,
        "The dashed line is chance.",
    )  # fmt: skip
    name = f"{metrics['model']} · {metrics['data']['name']}"
    return render_template(
        "minimal_pairs.html", title=f"minimal pairs · {name}", metrics=metrics, tables=tables, charts=[chart]
    )


def print_minimal_pairs(run: Run) -> None:
    """Print the accuracy of all pairs, of the baselines and of each field, and the directory."""
    metrics = run.metrics
    title = f"minimal pairs · {metrics['data']['name']} · {metrics['model']}"
    table = Table(title=to_plain_text(title), title_justify="left")
    for number, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="right" if number else "left", overflow="fold")
    for row in _list_totals(metrics):
        table.add_row(*row)
    table.add_section()
    groups = metrics["fields"] or metrics["phenomena"]
    for name, group in groups.items():
        table.add_row(*map(to_plain_text, _format_group(name, group)))
    out_console.print(table)
    out_console.print(f"evaluation: {run.output_dir}", markup=False, soft_wrap=True)
