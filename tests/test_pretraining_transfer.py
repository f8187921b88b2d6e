"""The benchmark of pre-training against new weights, with a tiny model."""

from conftest import make_document_rows, make_ner_rows, make_toy_rows, write_rows

import pretraining_transfer


def test_the_table_has_a_probe_and_a_paired_difference_for_each_task(tmp_path, capsys):
    text = write_rows(tmp_path / "text.jsonl", make_document_rows(40))
    toy = write_rows(tmp_path / "toy.jsonl", make_toy_rows(40))
    words = write_rows(tmp_path / "words.jsonl", make_ner_rows(40))
    args = ["--text", text, "--probe", toy, "--tasks", f"classify:{toy}:20", f"ner:{words}::f1"]
    args += ["--objectives", "rtd", "--max-steps", 2, "--vocab-size", 60, "--max-length", 32]
    pretraining_transfer.main([*map(str, args), "--seeds", "2", "--epochs", "1"])
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| rtd")]
    assert len(table) == 3
    assert "linear probe on toy" in table[0]
    for line, task in zip(table[1:], ("classify", "ner"), strict=True):
        assert line.startswith(f"| rtd: {task}:")
        score, interval, difference, its_interval = [cell.strip() for cell in line.split("|")[2:-1]]
        low, high = map(float, interval.split(" to "))
        assert low <= float(score) <= high
        low, high = map(float, its_interval.split(" to "))
        assert low <= float(difference) <= high
