"""Private names of other packages: the page lists each one in use, and each one still exists.

A name is private if it begins with an underscore. The search covers attributes, imports, overridden methods,
and names in strings (`hasattr`, `__dict__`).
"""

import ast
import importlib
import inspect
import pkgutil
import re
import sys
import textwrap
from functools import cache, reduce
from pathlib import Path

import pytest
import torch

import bertkit

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/design/upstream.md"
PRIVATE = re.compile(r"_[a-zA-Z]\w*")
STRING_FUNCTIONS = ("getattr", "hasattr", "setattr", "delattr")
# Found by the search, but documented, or not a name of another package.
NOT_PRIVATE = {"_asdict", "_replace", "_fields"}  # public methods of named tuples
# Parameters of the methods that bertkit overrides or calls. Each call passes the arguments by position.
PARAMETERS = {
    "transformers.PreTrainedModel._can_set_attn_implementation": [],
    "transformers.Trainer._get_num_items_in_batch": ["self", "batch_samples", "device"],
    "transformers.Trainer._clip_grad_norm": ["self", "model"],
    "transformers.Trainer._get_output_dir": ["self", "trial"],
    "transformers.Trainer._save_checkpoint": ["self", "model", "trial"],
    "transformers.Trainer._save_rng_state": ["self", "output_dir"],
    "transformers.Trainer._load_rng_state": ["self", "checkpoint"],
    "transformers.Trainer._get_learning_rate": ["self"],
    "transformers.Trainer._maybe_log_save_evaluate": [
        "self",
        "tr_loss",
        "grad_norm",
        "model",
        "trial",
        "epoch",
        "ignore_keys_for_eval",
        "start_time",
        "learning_rate",
    ],
    "transformers.Trainer._load_from_checkpoint": ["self", "resume_from_checkpoint", "model"],
    "transformers.Trainer._load_best_model": ["self"],
    "torch.utils._pytree.tree_leaves": ["tree", "is_leaf"],
    "torch.distributed.distributed_c10d._get_default_store": [],
}


def read_table():
    """Return the dotted names in the first column of the table, with the other columns."""
    rows = re.findall(r"^\| `([\w.]+)` \| (.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    return {path: cells.split(" | ") for path, cells in rows}


def iter_private_parts(path):
    """Yield the parts of a dotted name that begin with an underscore."""
    return (part for part in path.split(".") if PRIVATE.fullmatch(part))


# ---- the names in use


def parse_modules():
    return {path: ast.parse(path.read_text("utf-8")) for path in sorted((ROOT / "bertkit").rglob("*.py"))}


def find_own_names(nodes):
    """Return the names that bertkit itself defines: functions, classes, variables, attributes of `self`."""
    names = set()
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            names.add(node.attr)
    return names


def is_self(node):
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def list_names(node):
    """Return the names that a node of the syntax tree takes from another object or package."""
    if isinstance(node, ast.Attribute):
        return [node.attr]
    if isinstance(node, ast.ImportFrom) and node.module and is_other_package(node.module):
        return [*node.module.split("."), *(alias.name for alias in node.names)]
    if isinstance(node, ast.Import):
        return [
            part for alias in node.names if is_other_package(alias.name) for part in alias.name.split(".")
        ]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in STRING_FUNCTIONS:
        return [node.args[1].value] if isinstance(node.args[1], ast.Constant) else []
    if isinstance(node, ast.Subscript) and getattr(node.value, "attr", "") == "__dict__":
        return [node.slice.value] if isinstance(node.slice, ast.Constant) else []
    return []


def is_other_package(module):
    package = module.split(".")[0]
    return package != "bertkit" and package not in sys.stdlib_module_names


def find_accessed_names(trees):
    """Return the private names that bertkit uses and does not define."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {name for node in nodes for name in list_names(node)}
    return {name for name in names if PRIVATE.fullmatch(name)} - find_own_names(nodes) - NOT_PRIVATE


def iter_classes():
    for module in pkgutil.walk_packages(bertkit.__path__, "bertkit."):
        if module.name != "bertkit.__main__":
            members = vars(importlib.import_module(module.name)).values()
            yield from (one for one in members if isinstance(one, type) and one.__module__ == module.name)


def find_inherited_names(own_class):
    """Return the private names of the class body that a base class of another package also uses."""
    bases = [base for base in own_class.__mro__[1:] if is_other_package(base.__module__)]
    if not bases:
        return set()
    [body] = ast.parse(textwrap.dedent(inspect.getsource(own_class))).body
    names = {node.attr for node in ast.walk(body) if isinstance(node, ast.Attribute) and is_self(node.value)}
    names |= {node.name for node in body.body if isinstance(node, ast.FunctionDef)}
    names |= {
        target.id for node in body.body for target in getattr(node, "targets", ()) if hasattr(target, "id")
    }
    sources = [read_source(base) for base in bases]
    return {
        name
        for name in names
        if PRIVATE.fullmatch(name) and any(re.search(rf"\b{name}\b", source) for source in sources)
    }


@cache
def read_source(one):
    """Return the source code of a class, or the empty string if it is compiled."""
    try:
        return inspect.getsource(one)
    except (OSError, TypeError):
        return ""


@pytest.mark.slow
def test_the_page_lists_exactly_the_private_names_in_use():
    pytest.importorskip("starlette")  # all modules are imported
    inherited = {name for own_class in iter_classes() for name in find_inherited_names(own_class)}
    in_use = find_accessed_names(parse_modules().values()) | inherited
    listed = {part for path in read_table() for part in iter_private_parts(path)}
    assert sorted(in_use) == sorted(listed)


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("trainer._inner()", {"_inner"}),
        ("from torch._dynamo import config", {"_dynamo"}),
        ("import torch._inductor.config", {"_inductor"}),
        ("from transformers.trainer import _private", {"_private"}),
        ("hasattr(model, '_tp_plan')", {"_tp_plan"}),
        ("arguments.__dict__['_setup_devices'] = 0", {"_setup_devices"}),
        ("class A:\n  def _own(self): return self._own()", set()),
        ("from bertkit._version import __version__\nimport _thread\nrow._replace(a=1)", set()),
    ],
)
def test_search_finds_private_names(code, names):
    assert find_accessed_names([ast.parse(code)]) == names


def test_search_finds_names_of_the_base_class():
    from torch.utils.data import DataLoader

    class Loader(DataLoader):
        _own = 1

        def _get_iterator(self):
            return self._iterator, self._own, self._is_mine

    assert find_inherited_names(Loader) == {"_get_iterator", "_iterator"}


# ---- the names exist


def has_name(path):
    """Return whether the object that a dotted name describes exists, in the class or in its instances."""
    *parents, name = path.split(".")
    owner = resolve(parents)
    return hasattr(owner, name) or re.search(rf"\bself\.{name}\b", read_source(owner)) is not None


def resolve(parts):
    """Import the object that the parts of a dotted name describe."""
    for split in range(len(parts), 0, -1):
        if (module := import_or_none(".".join(parts[:split]))) is not None:
            return reduce(getattr, parts[split:], module)
    raise ModuleNotFoundError(".".join(parts))


def import_or_none(name):
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


@pytest.mark.parametrize("path", read_table())
def test_private_name_exists(path):
    if path.startswith("torch.ops.mkldnn.") and not torch.backends.mkldnn.is_available():
        pytest.skip("this build of PyTorch has no oneDNN")
    assert has_name(path)
    if path in PARAMETERS:
        assert list(inspect.signature(resolve(path.split("."))).parameters) == PARAMETERS[path]


@pytest.mark.parametrize("path", read_table())
def test_behavior_of_a_private_name_has_a_test(path):
    """The last column names a test that fails if the behavior changes."""
    file, name = re.fullmatch(r"`(test_\w+\.py)::(test_\w+)`", read_table()[path][-1]).groups()
    assert f"def {name}(" in (ROOT / "tests" / file).read_text("utf-8")
