"""The directory that `bertkit fetch` writes, and that BERTKIT_OFFLINE_DIR names where there is no network.

Each model or dataset is a directory of plain files in `models/` or `datasets/`, with a record and checksums.
It can be copied to any file system: it has no links, no absolute paths, and only names that all accept.
"""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from urllib.parse import quote

from bertkit.errors import UserError, format_list
from bertkit.utils.files import (
    PARTIAL,
    expand_home,
    replace_path,
    require_disk_space,
    verify_checksums,
    write_checksums,
    write_text,
)
from bertkit.utils.reporting import report_info

VARIABLE = "BERTKIT_OFFLINE_DIR"
RECORD_FILE = ".fetched.json"
FOLDERS = {"model": "models", "tokenizer": "models", "dataset": "datasets"}  # by kind of repository


@dataclass(frozen=True)
class HubContent:
    """A repository of the Hub at a revision, or one directory of it.

    Attributes:
        kind: "model", "tokenizer" (of a model) or "dataset".
        part: Directory of the repository, such as the configuration of a dataset; None for all files.
    """

    repo: str
    kind: str
    revision: str | None = None
    part: str | None = None

    @property
    def path(self) -> Path:
        """The path in the directory, a name that every file system accepts."""
        revision, part = f"@{self.revision}" * bool(self.revision), f"+{self.part}" * bool(self.part)
        name = quote(f"{self.repo}{revision}{part}".replace("/", "--"), safe="@+")
        return Path(FOLDERS[self.kind]) / name


@dataclass(frozen=True)
class FetchRecord:
    """Where the files of a directory come from; `name` is the value of --model or --data."""

    name: str
    repo: str
    revision: str | None
    part: str | None
    commit: str


def get_offline_directory() -> Path | None:
    """Return the directory BERTKIT_OFFLINE_DIR; None if it is unset or empty."""
    value = os.environ.get(VARIABLE)
    if not value:
        return None
    root = expand_home(value)
    if not root.is_dir():
        raise UserError(f"{VARIABLE} {value}: is not a directory; pass the one that bertkit fetch wrote")
    return root


# ---- reading


def find_fetched(content: HubContent) -> Path | None:
    """Return the directory with these files in BERTKIT_OFFLINE_DIR; None if it is unset, or lacks them."""
    root = get_offline_directory()
    if root is None:
        return None
    if (root / content.path).is_dir():
        return _open(root / content.path)
    whole = root / HubContent(content.repo, content.kind, content.revision).path
    if content.part and (whole / content.part).is_dir():
        return _open(whole) / content.part
    return None


@cache  # a process looks a name up several times
def _open(folder: Path) -> Path:
    if problem := verify_checksums(folder):
        raise UserError(f"{folder}: {problem}; copy it again from where bertkit fetch wrote it")
    report_info(f"reading {folder} ({VARIABLE})")
    return folder


def describe_missing(kind: str, name: str) -> str:
    """Return the error for a name that BERTKIT_OFFLINE_DIR lacks: what it has, and how to fetch the name."""
    root = get_offline_directory()
    assert root is not None
    names = format_list(record.name for record in list_records(root, kind)) or "none"
    flag = "--data" if kind == "dataset" else "--model"
    return (
        f"is not in {VARIABLE} {root}, whose {FOLDERS[kind]} are: {names}; where there "
        f"is a network, run bertkit fetch {flag} {name} --to DIR, and copy DIR"
    )


def list_records(root: Path, kind: str) -> list[FetchRecord]:
    """Return the records of all models, or of all datasets, in a directory."""
    records = (read_record(folder) for folder in sorted((root / FOLDERS[kind]).glob("[!.]*")))
    return [record for record in records if record]


def read_record(folder: Path) -> FetchRecord | None:
    """Return the record of a directory; None if it has none."""
    try:
        return FetchRecord(**json.loads((folder / RECORD_FILE).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


# ---- writing


def store(root: Path, content: HubContent, source: Path, files: Sequence[str], record: FetchRecord) -> bool:
    """Copy files to the directory, and make them visible at once when all are complete.

    `files` are paths in `source`, with slashes. The result is False if the directory already has them.
    """
    target = root / content.path
    stored = read_record(target)  # perhaps under another name of the same files
    if stored and replace(stored, name=record.name) == record and verify_checksums(target) is None:
        return False
    where, hint = f"--to {root}", "free disk space, or choose a directory on another disk"
    size = sum((source / file).stat().st_size for file in files)
    require_disk_space(root, size, f"the files of {record.name}", hint, flag="--to")
    staging, replaced = (target.with_name(f".{target.name}{suffix}") for suffix in (PARTIAL, ".replaced"))
    try:
        for leftover in (staging, replaced):  # of a process that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        staging.mkdir(parents=True)
        for file in files:
            (staging / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / file, staging / file)  # the content, where the cache has a link
        write_text(staging / RECORD_FILE, json.dumps(asdict(record), indent=2) + "\n")
        write_checksums(staging)
        if target.exists():
            replace_path(target, replaced)
        replace_path(staging, target)
    except OSError as error:
        raise UserError(f"{where}: cannot write {record.name} ({error.strerror}); {hint}") from error
    finally:
        for leftover in (staging, replaced):
            shutil.rmtree(leftover, ignore_errors=True)
    return True
