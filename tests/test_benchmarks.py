"""Benchmarks: their commands can be parsed, and their reports are correct. None is run here."""

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


def made_up(speed, score=50.0):
    """Return measurements of an imaginary run."""
    return Measurements(speed, 20 * speed, 8.25, 1234.5, score, 60.0, "fp32")


RUNS = {BASELINE: [made_up(10.0), made_up(30.0)], "bertkit": [made_up(20.0), made_up(61.0)]}


# ---- training


def test_workloads_have_their_own_row_counts():
    by_default, own, of_all = (
        training.parse_workloads("sst2", None),
        training.parse_workloads("imdb=7", 40),
        training.parse_workloads("squad", 40),
    )
    assert [work.rows for work in by_default + own + of_all] == [6000, 7, 40]
    assert (of_all[0].eval_rows, WORKLOADS["squad"].eval_rows) == (40, 100)


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
    report = {entry.name: entry.build_command(Path("DATA"), Path("MODEL"), Path("OUT")) for entry in entries}
    for entry, words in report.items():
        if entry.startswith("bertkit"):
            given = parse(words[words.index("bertkit") + 1 :]).params
            assert (given["max_length"], given["batch_size"]) == (work.max_length, work.batch_size)
            assert given["pack"] == ("--pack" in entry)
        else:
            script = qa_script if work.task == "qa" else trainer_script
            given = script.parse_args(words[words.index("--train_file") - len(options_before(words)) :])
            assert (given.max_seq_length, given.learning_rate) == (work.max_length, work.learning_rate)
            assert given.pad_to_max_length == ("--no_pad_to_max_length" not in words)
    assert len(report) == (6 if work.task == "classify" else 5)
    assert report.get("simpletransformers", ["other/python"])[0] == "other/python"


def options_before(words):
    """Return the options before those that all systems share."""
    start = next(place for place, word in enumerate(words) if word.startswith("--"))
    return words[start : words.index("--train_file")]


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
    some = tmp_path / "page.md"
    some.write_text("# Before\n\n<!-- gpu -->\nold\n<!-- /gpu -->\n\nafter\n")
    docs_page.replace_section("gpu", "new\n", some)
    docs_page.replace_section("gpu", "newer\n", some)
    assert some.read_text() == "# Before\n\n<!-- gpu -->\nnewer\n<!-- /gpu -->\n\nafter\n"
    with pytest.raises(SystemExit, match="<!-- training -->"):
        docs_page.replace_section("training", "new", some)


@pytest.mark.parametrize("name", ["training", "gpu"])
def test_docs_page_has_all_sections(name, tmp_path):
    copy = tmp_path / "page.md"
    copy.write_text(docs_page.PAGE.read_text("utf-8"), "utf-8")
    docs_page.replace_section(name, "new", copy)
    assert f"<!-- {name} -->\nnew\n<!-- /{name} -->" in copy.read_text("utf-8")


@pytest.mark.parametrize("titles", [["SST-2"], ["SST-2", "SQuAD v1.1"]])
def test_chart_is_standalone_in_light_and_dark(titles):
    svg = docs_page.draw_bars("Speed", {title: {BASELINE: 1.0, "bertkit --pack": 2.5} for title in titles})
    texts = {found.text for found in ElementTree.fromstring(svg).iter() if found.tag.endswith("}text")}
    assert {*titles, BASELINE, "bertkit --pack", "2.50"} <= texts
    light, dark = svg.split("@media(prefers-color-scheme:dark)")
    assert "--ink: #1d2127" in light
    assert "--ink: #e8eaed" in dark
    used, defined = set(re.findall(r"var\((--\w+)\)", svg)), set(re.findall(r"(--\w+):", light))
    assert used <= defined


# ---- GPU


@pytest.mark.parametrize("way", ["Trainer, fp32", PACKED])
@pytest.mark.parametrize("work", ["pre-training", "fine-tuning"])
def test_both_trainers_are_measured(work, way):
    setup = next(setup for setup in SMALL if (setup.workload, str(setup)) == (work, way))
    found = gpu_step.measure(setup)
    assert found.sequences_per_second > 0
    assert 0 < found.tokens_per_second <= setup.length * found.sequences_per_second
    assert found.mfu > 0


def test_flops_count_layers_and_attention():
    import torch
    from transformers import BertConfig, BertModel

    from flops import count_training_flops

    model = BertModel(BertConfig(vocab_size=9, hidden_size=4, num_hidden_layers=2, num_attention_heads=2,
                                 intermediate_size=16))  # fmt: skip
    layer = 4 * (4 * 4 + 4) + (4 * 16 + 16) + (16 * 4 + 4) + 2 * 2 * 4
    assert count_training_flops(model, torch.tensor([3, 5])) == 6 * 2 * layer * 8 + 12 * 2 * 4 * (9 + 25)


def test_ratio_uses_the_same_number_format_and_failures_are_shown():
    of = {str(setup): setup for setup in SMALL if setup.workload == "fine-tuning"}
    results = {
        of["Trainer, fp32"]: gpu_step.Measurements(10.0, 200.0, 0.1, 50.0),
        of["bertkit, fp32"]: gpu_step.Measurements(25.0, 500.0, 0.25, 40.0),
        of[PACKED]: "out of memory",
    }
    report = gpu.format_text(gpu.parse_args(["--small"]), results)
    assert "| bertkit, fp32 | 25.0 | 2.50 | 500 | 25.0% | 40 |" in report
    assert f"| {PACKED} | out of memory |" in report


def test_setup_is_passed_to_its_process_unchanged(monkeypatch, capsys):
    found = gpu_step.Measurements(10.0, 200.0, 0.1, 50.0)
    setup = SMALL[-1]
    seen = []
    monkeypatch.setattr(gpu_step, "measure", lambda report: seen.append(report) or found)
    monkeypatch.setattr("sys.argv", ["gpu_step.py", json.dumps(dataclasses.asdict(setup))])
    gpu_step.main()
    assert seen == [setup]
    assert gpu_step.Measurements(**json.loads(capsys.readouterr().out)) == found


def test_timeout_is_reported():
    assert gpu.measure_in_subprocess(SMALL[0], limit=0) == "over 0 s"
