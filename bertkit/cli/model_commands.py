"""The commands `evaluate`, `calibrate`, `report`, `export`, `fill-mask` and `train-tokenizer`."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import typer

from bertkit.cli.options import build_command
from bertkit.cli.streams import get_piped_stdin, print_json
from bertkit.commands.configs import (
    CALIBRATE_HELP,
    EVALUATE_HELP,
    EXPORT_HELP,
    FILL_MASK_HELP,
    FP32,
    HELP,
    INT8,
    PYTORCH,
    REPORT_HELP,
    CalibrateConfig,
    EvaluateConfig,
    ExportConfig,
    FillMaskConfig,
    ReportConfig,
    TokenizerConfig,
)

if TYPE_CHECKING:
    from bertkit.commands.train_tokenizer import TrainedTokenizer

VARIANT_NAMES = {PYTORCH: "PyTorch", FP32: "ONNX fp32", INT8: "ONNX int8"}


def _evaluate(settings: dict[str, Any], as_json: bool) -> None:
    from bertkit.cli.console import print_run_json, print_scores
    from bertkit.commands.evaluate import evaluate

    run = evaluate(settings)
    if as_json:
        print_run_json(run)
    else:
        print_scores(run.metrics, run.output_dir)


def _calibrate(settings: dict[str, Any], as_json: bool) -> None:
    from bertkit.commands.calibrate import calibrate

    result = calibrate(settings)
    if as_json:
        print_json({**result.calibration, "output_dir": str(result.output_dir)})
    else:
        _print_calibration(result.calibration, result.output_dir)


def _print_calibration(calibration: Mapping[str, Any], output_dir: object) -> None:
    """Print what was fitted, and the scores before and after calibration."""
    from rich.table import Table

    from bertkit.cli.console import out_console, to_plain_text
    from bertkit.errors import format_count

    data = calibration["data"]
    name = (
        f"temperature {calibration['temperature']:.3f}" if "temperature" in calibration else "probabilities"
    )
    table = Table(title=f"{name}, fitted on {format_count(data['rows'], 'row')}", title_justify="left")
    table.add_column(to_plain_text(data["name"]))
    table.add_column("before", justify="right")
    table.add_column("after (cross-fitted)", justify="right")
    for part in (calibration, calibration.get("threshold"), calibration.get("abstention")):
        if part:
            table.add_section()
            for score, value in part["scores"]["before"].items():
                table.add_row(score, f"{value:.3f}", f"{part['scores']['after'][score]:.3f}")
    out_console.print(table)
    for line in _describe_decisions(calibration):
        out_console.print(line, markup=False, soft_wrap=True)
    out_console.print(f"run: {output_dir}", markup=False, soft_wrap=True)


def _describe_decisions(calibration: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line about the thresholds, abstention and prediction sets each, if they are fitted."""
    if threshold := calibration.get("threshold"):
        values = ", ".join(f"{label} {value:.3f}" for label, value in threshold["thresholds"].items())
        yield f"thresholds ({threshold['criterion']}): {values}"
    if abstention := calibration.get("abstention"):
        yield f"abstains below a confidence of {abstention['min_confidence']:.3f}"
    if sets := calibration.get("prediction_sets"):
        scores = sets["scores"]
        yield (
            f"{sets['level']:.0%} prediction sets: {scores['set_size']:.2f} labels on average; "
            f"{scores['set_coverage']:.1%} contain the gold label"
        )


def _report(settings: dict[str, Any], as_json: bool) -> None:
    from rich.filesize import decimal

    from bertkit.commands.report import report

    result = report(settings)
    if as_json:
        print_json({"report": str(result.path), **result.summary})
    else:
        typer.echo(f"report: {result.path} ({decimal(result.summary['bytes'])})")


def _fill_mask(settings: dict[str, Any], as_json: bool) -> None:
    from bertkit.commands.fill_mask import fill_mask

    result = fill_mask(settings, get_piped_stdin())
    if as_json:
        print_json({"model": result.model, "texts": result.texts})
        return
    for text in result.texts:
        _print_candidates(text)


def _print_candidates(text: Mapping[str, Any]) -> None:
    """Print the candidates for each [MASK] of a text."""
    from rich.table import Table
    from rich.text import Text

    from bertkit.cli.console import out_console, to_plain_text

    table = Table(title=to_plain_text(text["text"]), title_justify="left")
    has_several_masks = len(text["masks"]) > 1
    if has_several_masks:
        table.add_column("mask", justify="right")
    table.add_column("word")
    table.add_column("probability", justify="right")
    table.add_column("filled")
    for mask_number, candidates in enumerate(text["masks"], start=1):
        for candidate in candidates:
            cells: list[str | Text] = [str(mask_number)] if has_several_masks else []
            cells += [
                to_plain_text(candidate["word"]),
                f"{candidate['probability']:.3f}",
                to_plain_text(candidate["filled"]),
            ]
            table.add_row(*cells)
        table.add_section()
    out_console.print(table)


def _export(settings: dict[str, Any], as_json: bool) -> None:
    from bertkit.commands.export import export

    result = export(settings)
    if as_json:
        print_json({**result.measurements, "output_dir": str(result.output_dir)})
    else:
        _print_variants(result.measurements, result.output_dir)


def _print_variants(measurements: Mapping[str, Any], output_dir: object) -> None:
    """Print the scores, speed and size of each variant, and the largest differences of logits."""
    from rich.table import Table

    from bertkit.cli.console import out_console

    unit = measurements["counted"]
    table = Table(f"{measurements['rows_from']} ({measurements['rows']:,} {unit})")
    variants = list(measurements["scores"])
    for variant in variants:
        table.add_column(VARIANT_NAMES.get(variant, variant), justify="right")
    for metric in measurements["scores"][PYTORCH]:
        scores = [measurements["scores"][variant].get(metric) for variant in variants]
        # `metrics.json` has no scores that only a calibrated run has
        table.add_row(metric, *("" if score is None else f"{score:.3f}" for score in scores))
    table.add_section()
    for heading, key in ((f"{unit} per second", "rows_per_second"), ("size in MB", "megabytes")):
        values = measurements[key]
        cells = [f"{values[variant]:,.1f}" if variant in values else "" for variant in variants]
        table.add_row(heading, *cells)
    out_console.print(table)
    for variant, difference in measurements["greatest_difference"].items():
        out_console.print(
            f"largest difference of logits between {VARIANT_NAMES[variant]} and PyTorch: {difference:.1e}"
        )
    if INT8 in variants:
        out_console.print(_format_int8_effect(measurements), soft_wrap=True)
    out_console.print(f"model: {output_dir} (opset {measurements['opset']})", markup=False, soft_wrap=True)


def _format_int8_effect(measurements: Mapping[str, Any]) -> str:
    """Describe how int8 quantization changes scores, speed and size."""
    scores, sizes = measurements["scores"], measurements["megabytes"]
    speeds = measurements["rows_per_second"]
    score_changes = ", ".join(
        f"{name} {scores[INT8][name] - value:+.3f}" for name, value in scores[FP32].items()
    )
    return (
        f"int8 compared with ONNX fp32: {score_changes or 'not scored'}; "
        f"{speeds[INT8] / speeds[FP32]:.2f} times the speed "
        f"({speeds[INT8] / speeds[PYTORCH]:.2f} times that of PyTorch), "
        f"{sizes[INT8] / sizes[FP32]:.0%} of the size; predictions depend a little on the batch"
    )


def _train_tokenizer(settings: dict[str, Any], as_json: bool) -> None:
    from bertkit.commands.train_tokenizer import train_tokenizer

    result = train_tokenizer(settings)
    if as_json:
        print_json({"output_dir": str(result.output_dir), **result.statistics})
    else:
        _print_tokenizer(result)


def _print_tokenizer(result: "TrainedTokenizer") -> None:
    statistics = result.statistics
    lines = {
        "vocabulary": f"{statistics['vocab_size']:,} tokens, including {statistics['alphabet']:,} characters",
        "case": "lowercase" if statistics["lowercase"] else "cased",
        "accents": "stripped" if statistics["strip_accents"] else "kept",
        "[UNK]": f"{statistics['unknown']:.2%} of the tokens",
        "tokens/word": f"{statistics['tokens_per_word']:.2f}",
        "example": statistics["example"],
        "tokenizer": result.output_dir,
    }
    for name, value in lines.items():
        typer.echo(f"{name:<11} {value}")


evaluate = build_command(EvaluateConfig, EVALUATE_HELP, _evaluate)
calibrate = build_command(CalibrateConfig, CALIBRATE_HELP, _calibrate)
report = build_command(ReportConfig, REPORT_HELP, _report)
fill_mask = build_command(FillMaskConfig, FILL_MASK_HELP, _fill_mask)
export = build_command(ExportConfig, EXPORT_HELP, _export)
train_tokenizer = build_command(TokenizerConfig, HELP, _train_tokenizer)
