"""The settings and the definition of `swag`. Importing this module is fast."""

from dataclasses import dataclass

from bertkit.settings.declaration import Panel, Pooling, pooling_setting, setting
from bertkit.settings.run_settings import FINETUNE, INT8, Candidate, FineTuningConfig
from bertkit.tasks import TaskDef


@dataclass(frozen=True, kw_only=True)
class SwagConfig(FineTuningConfig):
    """The settings of `swag`."""

    candidates = (Candidate("ending_only", "baseline"), FINETUNE, INT8)

    context_column: str | None = setting(
        None, "Column of the context.", Panel.COLUMNS, default_text="guessed"
    )
    start_column: str | None = setting(
        None, "Column of the beginning of all endings, such as sent2 in SWAG.", Panel.COLUMNS,
        default_text="none",
    )  # fmt: skip
    ending_columns: list[str] | None = setting(
        None, "Columns of the endings, separated by commas or repeated, or one column of lists.",
        Panel.COLUMNS, is_common=True, default_text="guessed",
    )  # fmt: skip
    label_column: str | None = setting(
        None, "Column of the correct ending.", Panel.COLUMNS, is_common=True, default_text="guessed"
    )
    pooling: Pooling = pooling_setting()


SWAG = TaskDef(
    name="swag",
    help="Fine-tune on multiple choice: a context and any number of endings.",
    config=SwagConfig,
    task="bertkit.tasks.choice.task:Swag",
    checks="bertkit.tasks.choice.checks:ChoiceChecks",
    views=("bertkit.tasks.choice.view:MultipleChoiceView",),
    labeled_unit="ending",
)
