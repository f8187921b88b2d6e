"""The settings of `bertkit check TASK`: the data and model settings of the task, and `--strict`."""

import dataclasses

from bertkit.config import RunConfig
from bertkit.setting import DATA, MODEL, OUTPUT, get_settings, setting

CHECK_HELP = "Check the data before training; exit with code 2 if training would refuse it."


def make_check_config(config_class: type[RunConfig]) -> type[RunConfig]:
    """Return a subclass of a task's config with only the Data and Model settings, and with `--strict`.

    The data is checked as it is in the files, so `--label-fixes` is left out.
    """
    excluded = {
        name
        for name, (_, metadata, _) in get_settings(config_class).items()
        if metadata.panel not in (DATA, MODEL) or name == "label_fixes"
    }
    strict = setting(False, "Also exit with code 2 if there are warnings.", OUTPUT)
    namespace = {
        "excluded_settings": config_class.excluded_settings | excluded,
        "__doc__": CHECK_HELP,
        "__module__": __name__,
    }
    return dataclasses.make_dataclass(
        f"Check{config_class.__name__}", [("strict", bool, strict)], bases=(config_class,), frozen=True,
        kw_only=True, namespace=namespace,
    )  # fmt: skip
