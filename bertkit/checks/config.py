"""The settings of `bertkit check TASK`: those of the task that concern data and model, and its own."""

import dataclasses

from bertkit.config import DATA, MODEL, OUTPUT, RunConfig, setting, settings_of

HELP = "Look at the data before training: exit 2 where training would refuse it."


def check_config(kind: type[RunConfig]) -> type[RunConfig]:
    """A task's config with the flags of its Data and Model panels alone, and `--strict`."""
    others = {name for name, (_, about, _) in settings_of(kind).items() if about.panel not in (DATA, MODEL)}
    strict = setting(False, "Exit 2 for warnings too.", OUTPUT)
    return dataclasses.make_dataclass(
        f"Check{kind.__name__}", [("strict", bool, strict)], bases=(kind,), frozen=True, kw_only=True,
        namespace={"without": kind.without | others, "__doc__": HELP, "__module__": __name__},
    )  # fmt: skip
