"""The settings of `bertkit check TASK`: those of the task that concern data and model, and its own."""

import dataclasses

from bertkit.config import DATA, MODEL, OUTPUT, RunConfig, get_settings, setting

CHECK_HELP = "Look at the data before training: exit 2 where training would refuse it."


def make_check_config(config_class: type[RunConfig]) -> type[RunConfig]:
    """A task's config with the flags of its Data and Model panels alone, and `--strict`."""
    others = {
        name for name, (_, about, _) in get_settings(config_class).items() if about.panel not in (DATA, MODEL)
    }
    strict = setting(False, "Exit 2 for warnings too.", OUTPUT)
    return dataclasses.make_dataclass(
        f"Check{config_class.__name__}", [("strict", bool, strict)], bases=(config_class,), frozen=True, kw_only=True,
        namespace={"excluded_settings": config_class.excluded_settings | others, "__doc__": CHECK_HELP, "__module__": __name__},
    )  # fmt: skip
