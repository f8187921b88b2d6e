"""Resolution and checks of the settings of a run, before any data is read."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bertkit.data.sources import resolve_data_dir
from bertkit.errors import UserError, format_count, format_list
from bertkit.run_directory import EXPERIMENT, RunDir, format_python_call
from bertkit.settings.declaration import fill_unset, get_flag, get_settings
from bertkit.settings.recipes import (
    COMMAND_NAME,
    Recipe,
    apply_overrides,
    list_passed_data,
    read_recipe,
    read_recipe_file,
    serialize_settings,
)
from bertkit.settings.run_settings import RunConfig
from bertkit.settings.validation import DataObject, validate_settings
from bertkit.stats.metric_modules import make_absolute
from bertkit.training.arguments import check_tracker, parse_extra_arguments
from bertkit.utils import devices, distributed, locks, system
from bertkit.utils.compat import require_extra
from bertkit.utils.files import check_output_directory, expand_home, join_command
from bertkit.utils.plugins import require_plugins
from bertkit.utils.reporting import report_info, report_warning

SAMPLING_STRATEGY = "train_sampling_strategy"
ConfigT = TypeVar("ConfigT", bound=RunConfig)


def resolve_settings(
    name: str,
    config_class: type[RunConfig],
    overrides: Mapping[str, Any],
    recipe: str | Recipe | None,
    is_locked: bool = False,
) -> tuple[RunConfig, dict[str, str] | None]:
    """Combine the settings of the user with those of a recipe or of the run to resume, and check them.

    Args:
        name: Name of the command.
        config_class: Class that declares the settings of the command.
        overrides: Settings of the user, which take precedence over those of the recipe.
        recipe: A recipe, or its name or path.
        is_locked: Whether this process has locked the output directory.

    Returns:
        The settings. With `resume`, also the fingerprints by split of the run's data, else None.
    """
    values = validate_settings(config_class, overrides, f"{name.partition(' ')[0].replace('-', '_')}()")
    for limit in ("word_budget", "time_limit"):
        if values.get(limit) is None:
            continue
        # Both are by the user, because `run.yaml` contains both. The time limit of a study limits the number
        # of trials, and replaces no setting.
        for other in get_settings(config_class)[limit].metadata.replaces:
            if values.get(other) is not None:
                flag, limit_flag = ("--" + name.replace("_", "-") for name in (other, limit))
                raise UserError(f"{limit_flag}: sets the number of steps; omit {flag}, or {limit_flag}")
    if isinstance(recipe, str):
        recipe = read_recipe(recipe, name, config_class)
    if recipe is not None:
        if recipe.provenance and not values.get("metric"):
            _require_named_modules(f"--recipe {recipe.name}", recipe, recipe.settings.get("metric", ()), ())
        values = apply_overrides(recipe.settings, values, config_class)
        _warn_about_processes(recipe)
    _check_processes(values)
    devices.request_device(values.get("device", devices.AUTO))
    for key in ("output_dir", "validation", "test"):
        if isinstance(values.get(key), str) and "://" not in values[key]:
            values[key] = str(expand_home(values[key]))
    if values.get("metric"):
        values["metric"] = [make_absolute(value) for value in values["metric"]]
    if values.get("output_dir"):
        check_output_directory(Path(values["output_dir"]))
        if not is_locked:
            locks.require_unlocked(Path(values["output_dir"]))
    if values.get("resume"):
        return _resume_settings(name, config_class, values)
    config = config_class(**values)
    _check_settings(name, config, {"recipe": recipe.name if recipe else None})
    if config.output_dir is not None:
        data = config.resolve_data_name()  # a directory of this name would then be read as the data
        if isinstance(data, str) and Path(config.output_dir) == Path(data):
            raise UserError(
                f"--output-dir {config.output_dir}: is also the value of --data; choose another directory"
            )
        check_output_directory(Path(config.output_dir), EXPERIMENT, config.overwrite)
    return config, None


def _check_settings(name: str, config: RunConfig, arguments: Mapping[str, Any]) -> None:
    """Check that data is passed, packages are installed, and settings do not exclude each other.

    `arguments` are further arguments of the Python call that passes missing data again.
    """
    require_data_objects(config, format_python_call(name, arguments, list_passed_data(config)))
    arguments_by_name = parse_extra_arguments(config)
    check_tracker(config.report_to)
    _require_peft(config)
    if config.validation and config.validation_fraction is not None:
        raise UserError(
            "--validation-fraction: no rows are held out if --validation is given; omit one of them"
        )
    if config.tokens_per_batch is not None and config.batch_size is not None:
        raise UserError("--tokens-per-batch: replaces --batch-size; omit one of them")
    if config.tokens_per_batch is not None and SAMPLING_STRATEGY in arguments_by_name:
        raise UserError(
            f"--set {SAMPLING_STRATEGY}: cannot be combined with --tokens-per-batch, which defines the order "
            "of examples; omit one of them"
        )


def fill_data_dir(config: ConfigT) -> ConfigT:
    """Fill in `data_dir` if it is not set, with the directory of the original dataset files if one exists."""
    directory = resolve_data_dir(config.data_dir)
    return fill_unset(config, {"data_dir": str(directory) if directory else None})


def _require_peft(config: RunConfig) -> None:
    if config.lora is not None:
        require_extra("lora", ["peft"], f"--lora {config.lora}")


def require_data_objects(config: RunConfig, call: str) -> None:
    """Refuse the settings of a run that was trained on data objects, unless they were passed again.

    `call` is the Python call that passes them again.
    """
    for name, kind in list_passed_data(config).items():
        if getattr(config, name).is_missing:
            raise UserError(
                f"{name}: the data of this run is a {kind} passed from Python, which is not saved with the "
                f"run; pass it again: {call}"
            )


def _require_named_modules(origin: str, recipe: Recipe, saved: Sequence[str], named: Sequence[str]) -> None:
    """Refuse modules that a file of a run names unless the user names them, too, or that are not installed.

    The directory may come from somebody else, so `run.yaml` must not decide which code is executed.
    `origin` is what names the modules, for the error message.
    """
    require_plugins(recipe.provenance.get("plugins", {}), recipe.path, ["metric"])
    missing = [value for value in saved if value not in named]
    if missing:
        flags = " ".join(f"--metric {value}" for value in missing)
        raise UserError(
            f"{origin}: the run executes the code of {format_list(missing)}; if you trust it, add {flags}"
        )


# ---- processes


def _warn_about_processes(recipe: Recipe) -> None:
    """Warn if the recipe is the `run.yaml` of a run with another number of processes.

    Batch sizes are per process, so the effective batch size would differ.
    """
    processes = recipe.provenance.get("processes", 1)
    if recipe.provenance and processes != system.get_launched_world_size():
        count = format_count(processes, "process", "processes")
        report_warning(
            f"{recipe.path}: batch size is per process, and this recipe's run used {count}; pass "
            f"--nproc {processes} to repeat the run"
        )


def _check_processes(values: Mapping[str, Any]) -> None:
    """Refuse settings that do not work with the number of processes."""
    if distributed.is_rank_unset():
        raise UserError("WORLD_SIZE is set but RANK is not; start processes with --nproc or torchrun")
    distributed.require_launcher(values.get("nproc") or 1)
    is_distributed = system.get_launched_world_size() > 1
    for item in values.get("set") or ():
        if is_distributed and item.startswith(f"{SAMPLING_STRATEGY}="):
            raise UserError(
                f"--set {item}: several processes support only bertkit's own order of examples; omit it"
            )


# ---- resume


def _resume_settings(
    name: str, config_class: type[RunConfig], values: dict[str, Any]
) -> tuple[RunConfig, dict[str, str]]:
    """Return the saved settings of a run with those of this call, and the fingerprints of the run's data."""
    folder = _find_run_to_resume(name, values)
    recipe = read_recipe(str(RunDir(folder).settings_file), name, config_class)
    saved = config_class(**recipe.settings)
    is_finished = RunDir(folder).is_finished  # then it does not train and is not scored again
    if not is_finished:
        named_modules = values.get("metric") or ()
        _require_named_modules(f"--resume {folder}", recipe, saved.metric, named_modules)
    objects = {key: value for key, value in values.items() if isinstance(value, DataObject)}
    passed_again: dict[str, Any] = {key: objects[key] for key in list_passed_data(saved) if key in objects}
    saved = dataclasses.replace(saved, **passed_again)
    if not is_finished:
        arguments = {"output_dir": str(folder), "resume": True}
        require_data_objects(saved, format_python_call(name, arguments, list_passed_data(saved)))
        _require_peft(saved)
    for key, value in values.items():
        if key not in ("resume", "output_dir"):
            _check_unchanged(key, value, saved)
    call_settings = {
        key: values[key]
        for key, (_, setting, _) in get_settings(config_class).items()
        if key in values and not setting.is_saved
    }
    check_tracker(saved.report_to)
    if not is_finished:
        saved = _keep_effective_batch(saved, recipe.provenance.get("processes", 1), folder)
    fingerprints = RunDir(folder).read_provenance()["data"]
    return dataclasses.replace(saved, **call_settings), fingerprints


def _keep_effective_batch(saved: RunConfig, started_with: int, folder: Path) -> RunConfig:
    """Return the settings with which the processes of this call train the effective batches of the run.

    `started_with` is the number of processes to which the saved settings belong. A batch does not become
    larger, so that it fits into memory. With `tokens_per_batch`, batches must stay the same, so only the
    number of accumulation steps changes.
    """
    processes, batch_size = system.get_launched_world_size(), saved.batch_size
    if processes == started_with or (batch_size is None and saved.tokens_per_batch is None):
        return saved
    items, unit = started_with * saved.gradient_accumulation_steps, "batches"
    if batch_size is not None:
        items, unit = items * batch_size, "examples"
    if items % processes:
        possible = [count for count in range(1, items + 1) if items % count == 0]
        nearest = [*(count for count in possible if count < processes)][-1:]
        nearest += [count for count in possible if count > processes][:1]
        size = "" if batch_size is None else f"batch size {batch_size} x "
        raise UserError(
            f"--resume {folder}: an optimizer step of this run has {items} {unit} ({size}"
            f"{format_count(saved.gradient_accumulation_steps, 'accumulation step')} x "
            f"{format_count(started_with, 'process', 'processes')}), which {processes} processes cannot "
            f"share equally; resume with {' or '.join(map(str, nearest))} (--nproc)"
        )
    steps = items // processes
    if batch_size is not None:
        batch_size = max(size for size in range(1, batch_size + 1) if steps % size == 0)
        steps //= batch_size
    report_info(
        f"resuming with {format_count(processes, 'process', 'processes')} in place of {started_with}: "
        + ("" if batch_size is None else f"batch_size {batch_size}, ")
        + f"gradient_accumulation_steps {steps}, the same effective batch size"
    )
    return dataclasses.replace(saved, batch_size=batch_size, gradient_accumulation_steps=steps)


def _find_run_to_resume(name: str, values: Mapping[str, Any]) -> Path:
    """Return the run directory that `--output-dir` names, which must contain a run of the command."""
    folder = values.get("output_dir")
    if folder is None:
        raise UserError("--resume: needs a run to resume; pass its directory with --output-dir")
    if not RunDir(Path(folder)).is_started:
        raise UserError(
            f"--resume: {folder} does not contain a run; pass the directory of a run with --output-dir"
        )
    command = read_recipe_file(RunDir(Path(folder)).settings_file).get("task")
    if isinstance(command, str) and COMMAND_NAME.fullmatch(command) and command != name:
        raise UserError(
            f"--resume: {folder} was written by bertkit {command}; resume with: "
            + join_command(["bertkit", *command.split(), "--resume", "--output-dir", str(folder)])
        )
    return Path(folder)


def _check_unchanged(key: str, value: Any, saved: RunConfig) -> None:
    """Refuse a setting of the user that differs from the setting of the run to resume."""
    config_class = type(saved)
    flag = get_flag(key, get_settings(config_class)[key].metadata)
    if key in ("overwrite", "dry_run", "preview") and value:
        raise UserError(f"--resume: cannot be combined with {flag}; omit one of them")
    saved_value = getattr(saved, key)
    requested, existing = config_class(**{key: value}), config_class(**{key: saved_value})
    if serialize_settings(requested) != serialize_settings(existing):
        raise UserError(
            f"--resume: {flag} is {_format_value(saved_value)} in this run and cannot become "
            f"{_format_value(value)}; omit it"
        )


def _format_value(value: Any) -> str:
    """Return a value for a message: the items of a list with commas, and no Python constants."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value)) or "not set"
    return "not set" if value is None else repr(value)
