"""The settings of `glue`: those of a run, but for its data, and its own three."""

from dataclasses import dataclass

from bertkit.config import DATA, TRAINING, RunConfig, setting


@dataclass(frozen=True, kw_only=True)
class GlueConfig(RunConfig):
    """What is said here goes before what the recipes `glue/TASK` say."""

    without = frozenset(
        {"data", "validation", "test", "validation_fraction", "split_seed", "dry_run", "overwrite"}
    )

    tasks: list[str] | None = setting(
        None, "Tasks to run: repeatable, or parted by commas.", DATA, default_text="all nine"
    )
    learning_rates: str | None = setting(
        None,
        "Try each on the validation set and keep the best: paper (5e-5, 4e-5, 3e-5, 2e-5), or rates parted "
        "by commas.",
        TRAINING,
        default_text="one, by data and model size",
    )
    seeds: int = setting(
        1, "Runs of each task, with seeds --seed, --seed + 1, ...: mean and standard deviation.", min=1
    )


HELP = "Run the GLUE tasks one after the other; the paper's table, and the files of the leaderboard."
