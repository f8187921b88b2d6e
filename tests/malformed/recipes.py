"""Recipes, as `--recipe` reads them."""

from malformed.case import HTML, LFS_POINTER, Case, expect_error, expect_rows

ANCHOR_BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
WRONG_VALUES = {
    "epochs": ["many", "[3]", "{a: 1}", "true", ".nan", ".inf", "-1", "2020-01-01"],
    "batch_size": ["1.5", "'8'", "true", "0", "[8]"],
    "seed": ["-1", "99999999999999999999", "1e3"],
    "model": ["[a, b]", "{a: b}", "true", "''", "1.5"],
    "compile": ["maybe", "1", "'true'"],
    "long_texts": ["middle", "1", "[head]"],
    "set": ["{a: b}", "[[a]]", "[1.5]"],
}
FILES = {
    "settings alone": expect_rows("settings: {epochs: 3, seed: 1}\n", 2),
    "a task and nothing set": expect_rows("task: classify\nsettings: {}\n", 0),
    "nothing in it": expect_error("", "'task' and 'settings'"),
    "comments alone": expect_error("# nothing\n", "'task' and 'settings'"),
    "a byte order mark": expect_rows("\ufeffsettings: {epochs: 3}\n", 1),
    "UTF-16": expect_error("settings: {}\n".encode("utf-16"), "cannot parse it as YAML"),
    "Latin-1": expect_error("settings: {}  # caf\xe9\n".encode("latin-1"), "cannot parse it as YAML"),
    "a zero byte": expect_error("settings: {}\n\0", "cannot parse it as YAML"),
    "a TAB for blanks": expect_error("settings:\n\tepochs: 3\n", "cannot parse it as YAML"),
    "a bracket that does not close": expect_error("settings: {epochs: 3\n", "cannot parse it as YAML"),
    "a quote that does not close": expect_error("settings: {model: 'x}\n", "cannot parse it as YAML"),
    "an anchor that is not there": expect_error("settings: *none\n", "cannot parse it as YAML"),
    "an anchor in itself": expect_error("settings: &a {set: [*a]}\n", "set"),
    "anchors upon anchors": expect_error(ANCHOR_BOMB + "settings: {}\n", "unknown key"),
    "anchors upon anchors in a setting": expect_error("settings:\n  " + ANCHOR_BOMB.replace("\n", "\n  ") + "model: *i\n", "setting"),
    "a key twice": expect_error("settings: {epochs: 3, epochs: 4}\n", "epochs", "repeated"),
    "settings twice": expect_error("settings: {epochs: 3}\nsettings: {seed: 1}\n", "settings", "repeated"),
    "a tag of Python": expect_error("settings: !!python/object/apply:os.system ['touch x']\n", "cannot parse it as YAML"),
    "a tag of one's own": expect_error("settings: !mine {}\n", "cannot parse it as YAML"),
    "two documents": expect_error("settings: {}\n---\nsettings: {}\n", "cannot parse it as YAML"),
    "a list": expect_error("- settings\n", "'task' and 'settings'"),
    "a text": expect_error("settings\n", "'task' and 'settings'"),
    "a number": expect_error("5\n", "'task' and 'settings'"),
    "settings that are a list": expect_error("settings: [epochs]\n", "'task' and 'settings'"),
    "settings that are null": expect_error("settings:\n", "'task' and 'settings'"),
    "a key that is a number": expect_error("settings: {}\n5: x\n", "unknown key 5"),
    "a key that is a list": expect_error("settings: {}\n? [a]\n: x\n", "cannot parse it as YAML"),
    "a setting that is a number": expect_error("settings: {5: x}\n", "unknown setting '5'"),
    "a setting that is null": expect_error("settings: {~: x}\n", "unknown setting"),
    "a setting that nobody knows": expect_error("settings: {epoch: 3}\n", "did you mean 'epochs'"),
    "a setting of another task": expect_error("settings: {doc_stride: 3}\n", "unknown setting 'doc_stride'"),
    "another task": expect_error("task: nli\nsettings: {}\n", "recipe for nli"),
    "a task that is a list": expect_error("task: [classify]\nsettings: {}\n", "task"),
    "a task that is null": expect_error("task:\nsettings: {}\n", "task"),
    "an unknown task": expect_error("task: ../x\nsettings: {}\n", "task"),
    "nested too deeply": expect_error("settings: " + "[" * 500, "cannot parse it as YAML"),
    "a number of endless digits": expect_error("settings: {seed: " + "9" * 5000 + "}\n", "cannot parse it as YAML"),
    "an invalid date": expect_error("settings: {model: 2020-13-45}\n", "cannot parse it as YAML"),
    "what it was made with, as a list": expect_error("settings: {}\nprovenance: [a]\n", "provenance"),
    "a page in place of the file": expect_error(HTML),
    "a pointer of git LFS": expect_error(LFS_POINTER),
} | {
    f"{key} is {value}": expect_error(f"settings: {{{key}: {value}}}\n", key)
    for key, values in WRONG_VALUES.items()
    for value in values
}  # fmt: skip

CASES: dict[str, Case] = FILES
