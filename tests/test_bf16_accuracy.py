"""Test the comparison of scores in bf16 and fp32: its commands, and its statistics."""

from pathlib import Path

import pytest
from test_docs import parse

import bf16_accuracy

SCORES = {"bf16": [80.0, 82.0, 81.0], "fp32": [81.0, 82.5, 82.5]}


@pytest.mark.parametrize("name", bf16_accuracy.DATASETS)
@pytest.mark.parametrize("number_format", bf16_accuracy.FORMATS)
def test_commands_can_be_parsed(name, number_format):
    args = bf16_accuracy.parse_args(["--data-dir", "DATA"])
    run = bf16_accuracy.describe_run(bf16_accuracy.DATASETS[name], number_format, 3, args)
    _, _, _, *command = run.build_command(Path("data"), Path("model"), Path("output"))
    parse(command)
    assert command[command.index("--seed") + 1] == "3"
    assert bf16_accuracy.FORMATS[number_format] in command


def test_drop_is_paired_by_seed():
    bf16, fp32, drop, interval, p = bf16_accuracy.format_cells(SCORES)
    assert (bf16, fp32, drop) == ("81.00", "82.00", "+1.00")
    # mean 1, standard error 0.5 / sqrt(3), t of 2 degrees of freedom 4.303
    assert interval == "-0.24 to +2.24"
    assert p == "0.07"


def test_scores_of_each_seed_are_listed():
    assert bf16_accuracy.list_scores({"SST-2": SCORES})[-1] == (
        "- SST-2: bf16 80.0, 82.0, 81.0; fp32 81.0, 82.5, 82.5"
    )


def test_one_seed_is_refused(capsys):
    with pytest.raises(SystemExit):
        bf16_accuracy.parse_args(["--seeds", "1"])
    assert "--seeds must be at least 2" in capsys.readouterr().err
