"""Test that commands of the benchmarks can be parsed, and that reports are correct; no benchmark runs."""

import dataclasses
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from test_docs import parse

import docs_page
import gpu
import gpu_step
import qa_script
import systems
import trainer_script
import training
from bertkit.training.defaults import is_bf16_faster
from systems import BASELINE, Measurements
from workloads import WORKLOADS

SMALL = gpu.list_setups(gpu.parse_args(["--small"]))
PACKED = f"bertkit, {'bf16' if is_bf16_faster() else 'fp32'}, pack"


def make_measurements(speed, score=50.0):
    """Return measurements of an imaginary run."""
    return Measurements(speed, 20 * speed, 8.25, 1234.5, score, 60.0, "fp32")


RUNS = {
    BASELINE: [make_measurements(10.0), make_measurements(30.0)],
    "bertkit": [make_measurements(20.0), make_measurements(61.0)],
}


# ---- training


def test_workloads_have_their_own_row_counts():
    default, with_number, with_rows = (
        training.parse_workloads("sst2", None),
        training.parse_workloads("imdb=7", 40),
        training.parse_workloads("squad", 40),
    )
    assert [work.rows for work in default + with_number + with_rows] == [6000, 7, 40]
    assert (with_rows[0].eval_rows, WORKLOADS["squad"].eval_rows) == (40, 100)


@pytest.mark.parametrize("text", ["sst3", "sst2=", "sst2=many", ""])
def test_unknown_workload_is_refused(text):
    with pytest.raises(ValueError, match="--work"):
        training.parse_workloads(text, None)


def test_missing_data_is_refused_before_anything_runs(tmp_path, capsys):
    with pytest.raises(SystemExit):
        training.parse_args(["--data-dir", str(tmp_path), "--work", "imdb,squad"])
    assert "no squad/ found" in capsys.readouterr().err


@pytest.mark.parametrize("name", WORKLOADS)
def test_commands_of_all_systems_can_be_parsed(name, tmp_path):
    work = WORKLOADS[name]
    entries = systems.list_systems(work, tmp_path, "other/python")
    commands = {
        entry.name: entry.build_command(Path("DATA"), Path("MODEL"), Path("OUT")) for entry in entries
    }
    for entry, command in commands.items():
        if entry.startswith("bertkit"):
            options = parse(command[command.index("bertkit") + 1 :]).params
            assert (options["max_length"], options["batch_size"]) == (work.max_length, work.batch_size)
            assert options["pack"] == ("--pack" in entry)
        else:
            script = qa_script if work.task == "qa" else trainer_script
            options = script.parse_args(
                command[command.index("--train_file") - len(list_own_options(command)) :]
            )
            assert (options.max_seq_length, options.learning_rate) == (work.max_length, work.learning_rate)
            assert options.pad_to_max_length == ("--no_pad_to_max_length" not in command)
    assert len(commands) == (6 if work.task == "classify" else 5)
    assert commands.get("simpletransformers", ["other/python"])[0] == "other/python"


def list_own_options(command):
    """Return the options before those that all systems share."""
    start = next(index for index, argument in enumerate(command) if argument.startswith("--"))
    return command[start : command.index("--train_file")]


def test_ratios_are_computed_per_round():
    assert training.compute_ratios(RUNS)["bertkit"] == pytest.approx((20 / 10 + 61 / 30) / 2)


def test_the_table_has_the_medians():
    lines = training.format_section(WORKLOADS["sst2"], RUNS)
    row = next(line for line in lines if line.startswith("| bertkit |"))
    assert row == "| bertkit | 2.02 | 40.5 | 810 | 8.2 | 1,234 | 50.0 | 60.0 | fp32 |"
    assert "| ratio | examples/s | tokens/s | first step, s | peak MB | accuracy, % |" in lines[2]
    assert "- bertkit: 20.0, 61.0" in lines


# ---- the page


def test_section_of_the_docs_page_is_replaced(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Before\n\n<!-- gpu -->\nold\n<!-- /gpu -->\n\nafter\n")
    docs_page.replace_section("gpu", "new\n", page)
    docs_page.replace_section("gpu", "newer\n", page)
    assert page.read_text() == "# Before\n\n<!-- gpu -->\nnewer\n<!-- /gpu -->\n\nafter\n"
    with pytest.raises(SystemExit, match="<!-- training -->"):
        docs_page.replace_section("training", "new", page)


@pytest.mark.parametrize("name", ["training", "gpu"])
def test_docs_page_has_all_sections(name, tmp_path):
    copy = tmp_path / "page.md"
    copy.write_text(docs_page.PAGE.read_text("utf-8"), "utf-8")
    docs_page.replace_section(name, "new", copy)
    assert f"<!-- {name} -->\nnew\n<!-- /{name} -->" in copy.read_text("utf-8")


@pytest.mark.parametrize("titles", [["SST-2"], ["SST-2", "SQuAD v1.1"]])
def test_chart_is_standalone_in_light_and_dark(titles):
    svg = docs_page.draw_bars("Speed", {title: {BASELINE: 1.0, "bertkit --pack": 2.5} for title in titles})
    texts = {element.text for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("}text")}
    assert {*titles, BASELINE, "bertkit --pack", "2.50"} <= texts
    light, dark = svg.split("@media(prefers-color-scheme:dark)")
    assert "--ink: #1d2127" in light
    assert "--ink: #e8eaed" in dark
    used, defined = set(re.findall(r"var\((--\w+)\)", svg)), set(re.findall(r"(--\w+):", light))
    assert used <= defined


# ---- GPU


@pytest.mark.parametrize("variant", ["Trainer, fp32", PACKED])
@pytest.mark.parametrize("work", ["pre-training", "fine-tuning"])
def test_both_trainers_are_measured(work, variant):
    setup = next(setup for setup in SMALL if (setup.workload, str(setup)) == (work, variant))
    measurements = gpu_step.measure(setup)
    assert measurements.sequences_per_second > 0
    assert 0 < measurements.tokens_per_second <= setup.length * measurements.sequences_per_second
    assert measurements.mfu > 0


def test_flops_count_layers_and_attention():
    import torch
    from transformers import BertConfig, BertModel

    from flops import count_training_flops

    model = BertModel(BertConfig(vocab_size=9, hidden_size=4, num_hidden_layers=2, num_attention_heads=2,
                                 intermediate_size=16))  # fmt: skip
    layer = 4 * (4 * 4 + 4) + (4 * 16 + 16) + (16 * 4 + 4) + 2 * 2 * 4
    assert count_training_flops(model, torch.tensor([3, 5])) == 6 * 2 * layer * 8 + 12 * 2 * 4 * (9 + 25)


def test_ratio_uses_the_same_precision_and_failures_are_shown():
    setups = {str(setup): setup for setup in SMALL if setup.workload == "fine-tuning"}
    results = {
        setups["Trainer, fp32"]: gpu_step.Measurements(10.0, 200.0, 0.1, 50.0),
        setups["bertkit, fp32"]: gpu_step.Measurements(25.0, 500.0, 0.25, 40.0),
        setups[PACKED]: "out of memory",
    }
    report = gpu.format_text(gpu.parse_args(["--small"]), results)
    assert "| bertkit, fp32 | 25.0 | 2.50 | 500 | 25.0% | 40 |" in report
    assert f"| {PACKED} | out of memory |" in report


def test_setup_is_passed_to_its_process_unchanged(monkeypatch, capsys):
    measurements = gpu_step.Measurements(10.0, 200.0, 0.1, 50.0)
    setup = SMALL[-1]
    setups = []
    monkeypatch.setattr(gpu_step, "measure", lambda report: setups.append(report) or measurements)
    monkeypatch.setattr("sys.argv", ["gpu_step.py", json.dumps(dataclasses.asdict(setup))])
    gpu_step.main()
    assert setups == [setup]
    assert gpu_step.Measurements(**json.loads(capsys.readouterr().out)) == measurements


def test_timeout_is_reported():
    assert gpu.measure_in_subprocess(SMALL[0], limit=0) == "over 0 s"
