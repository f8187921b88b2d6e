"""The settings of `bertkit check TASK`: those of the task about data and model, and its own."""

import dataclasses

from bertkit.config import DATA, MODEL, OUTPUT, RunConfig, get_settings, setting

CHECK_HELP = "Check the data before training; exit with code 2 if training would refuse it."


def make_check_config(config_class: type[RunConfig]) -> type[RunConfig]:
    """Return a task's config with only the settings of its Data and Model panels, and `--strict`."""
    excluded = {
        name for name, (_, about, _) in get_settings(config_class).items() if about.panel not in (DATA, MODEL)
    }
    strict = setting(False, "Exit with code 2 for warnings too.", OUTPUT)
    namespace = {
        "excluded_settings": config_class.excluded_settings | excluded,
        "__doc__": CHECK_HELP,
        "__module__": __name__,
    }
    return dataclasses.make_dataclass(
        f"Check{config_class.__name__}", [("strict", bool, strict)], bases=(config_class,), frozen=True,
        kw_only=True, namespace=namespace,
    )  # fmt: skip
