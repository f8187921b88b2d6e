"""`bertkit export`: a finished run as an ONNX model."""

import json
from collections.abc import Mapping
from typing import Any

import typer

from bertkit.cli.options import build_command
from bertkit.infer.configs import EXPORT_HELP, FP32, INT8, PYTORCH, ExportConfig

VARIANT_NAMES = {PYTORCH: "PyTorch", FP32: "ONNX fp32", INT8: "ONNX int8"}


def _run(given: dict[str, Any], as_json: bool) -> None:
    from bertkit.cli.console import ConsoleReporter
    from bertkit.infer.export import export

    made = export(given, ConsoleReporter())
    if as_json:
        typer.echo(json.dumps({**made.measurements, "output_dir": str(made.output_dir)}, ensure_ascii=False))
    else:
        _print(made.measurements, made.output_dir)


def _print(figures: Mapping[str, Any], folder: object) -> None:
    """The forms of the model side by side, and how far they are apart."""
    from rich.table import Table

    from bertkit.cli.console import out_console

    table = Table(f"{figures['rows_from']} ({figures['rows']:,} {figures['counted']})")
    forms = list(figures["scores"])
    for form in forms:
        table.add_column(VARIANT_NAMES.get(form, form), justify="right")
    for name in figures["scores"][PYTORCH]:
        table.add_row(name, *(f"{figures['scores'][form][name]:.3f}" for form in forms))
    table.add_section()
    for name, key in ((f"{figures['counted']} a second", "rows_per_second"), ("MB", "megabytes")):
        table.add_row(name, *(f"{figures[key][form]:,.1f}" if form in figures[key] else "" for form in forms))
    out_console.print(table)
    for form, difference in figures["greatest_difference"].items():
        out_console.print(
            f"greatest difference of logits, {VARIANT_NAMES[form]} to PyTorch: {difference:.1e}"
        )
    if INT8 in forms:
        out_console.print(_cost(figures), soft_wrap=True)
    out_console.print(f"model: {folder} (opset {figures['opset']})", markup=False, soft_wrap=True)


def _cost(figures: Mapping[str, Any]) -> str:
    """What 8 bits cost and gain."""
    scores, speeds, sizes = figures["scores"], figures["rows_per_second"], figures["megabytes"]
    changes = ", ".join(f"{name} {scores[INT8][name] - value:+.3f}" for name, value in scores[FP32].items())
    return (
        f"int8 to ONNX fp32: {changes or 'not scored'}; {speeds[INT8] / speeds[FP32]:.2f} times as fast "
        f"(to PyTorch {speeds[INT8] / speeds[PYTORCH]:.2f}), {sizes[INT8] / sizes[FP32]:.0%} of the size"
    )


export = build_command(ExportConfig, EXPORT_HELP, _run)
