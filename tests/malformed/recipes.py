"""Recipes, as `--recipe` reads them."""

from malformed.case import HTML, POINTER, Case, legal, refused

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
WRONG = {
    "epochs": ["many", "[3]", "{a: 1}", "true", ".nan", ".inf", "-1", "2020-01-01"],
    "batch_size": ["1.5", "'8'", "true", "0", "[8]"],
    "seed": ["-1", "99999999999999999999", "1e3"],
    "model": ["[a, b]", "{a: b}", "true", "''", "1.5"],
    "compile": ["maybe", "1", "'true'"],
    "long": ["middle", "1", "[head]"],
    "set": ["{a: b}", "[[a]]", "[1.5]"],
}
FILES = {
    "settings alone": legal("settings: {epochs: 3, seed: 1}\n", 2),
    "a task and nothing set": legal("task: classify\nsettings: {}\n", 0),
    "nothing in it": refused("", "'task' and 'settings'"),
    "comments alone": refused("# nothing\n", "'task' and 'settings'"),
    "a byte order mark": legal("\ufeffsettings: {epochs: 3}\n", 1),
    "UTF-16": refused("settings: {}\n".encode("utf-16"), "not YAML"),
    "Latin-1": refused("settings: {}  # caf\xe9\n".encode("latin-1"), "not YAML"),
    "a zero byte": refused("settings: {}\n\0", "not YAML"),
    "a TAB for blanks": refused("settings:\n\tepochs: 3\n", "not YAML"),
    "a bracket that does not close": refused("settings: {epochs: 3\n", "not YAML"),
    "a quote that does not close": refused("settings: {model: 'x}\n", "not YAML"),
    "an anchor that is not there": refused("settings: *none\n", "not YAML"),
    "an anchor in itself": refused("settings: &a {set: [*a]}\n", "set"),
    "anchors upon anchors": refused(BOMB + "settings: {}\n", "unknown key"),
    "anchors upon anchors in a setting": refused("settings:\n  " + BOMB.replace("\n", "\n  ") + "model: *i\n", "setting"),
    "a key twice": refused("settings: {epochs: 3, epochs: 4}\n", "epochs", "twice"),
    "settings twice": refused("settings: {epochs: 3}\nsettings: {seed: 1}\n", "settings", "twice"),
    "a tag of Python": refused("settings: !!python/object/apply:os.system ['touch x']\n", "not YAML"),
    "a tag of one's own": refused("settings: !mine {}\n", "not YAML"),
    "two documents": refused("settings: {}\n---\nsettings: {}\n", "not YAML"),
    "a list": refused("- settings\n", "'task' and 'settings'"),
    "a text": refused("settings\n", "'task' and 'settings'"),
    "a number": refused("5\n", "'task' and 'settings'"),
    "settings that are a list": refused("settings: [epochs]\n", "'task' and 'settings'"),
    "settings that are null": refused("settings:\n", "'task' and 'settings'"),
    "a key that is a number": refused("settings: {}\n5: x\n", "unknown key 5"),
    "a key that is a list": refused("settings: {}\n? [a]\n: x\n", "not YAML"),
    "a setting that is a number": refused("settings: {5: x}\n", "unknown setting '5'"),
    "a setting that is null": refused("settings: {~: x}\n", "unknown setting"),
    "a setting that nobody knows": refused("settings: {epoch: 3}\n", "did you mean 'epochs'"),
    "a setting of another task": refused("settings: {doc_stride: 3}\n", "unknown setting 'doc_stride'"),
    "another task": refused("task: nli\nsettings: {}\n", "recipe for nli"),
    "a task that is a list": refused("task: [classify]\nsettings: {}\n", "task"),
    "a task that is null": refused("task:\nsettings: {}\n", "task"),
    "a task that is none": refused("task: ../x\nsettings: {}\n", "task"),
    "nested too deeply": refused("settings: " + "[" * 500, "not YAML"),
    "a number of endless digits": refused("settings: {seed: " + "9" * 5000 + "}\n", "not YAML"),
    "a date that is none": refused("settings: {model: 2020-13-45}\n", "not YAML"),
    "what it was made with, as a list": refused("settings: {}\nmade_with: [a]\n", "made_with"),
    "a page in place of the file": refused(HTML),
    "a pointer of git LFS": refused(POINTER),
} | {
    f"{key} is {value}": refused(f"settings: {{{key}: {value}}}\n", key)
    for key, values in WRONG.items()
    for value in values
}  # fmt: skip

CASES: dict[str, Case] = FILES
