"""The settings and the definition of `qa`. Importing this module is fast."""

from dataclasses import dataclass
from typing import Literal

from bertkit.settings.declaration import Panel, setting
from bertkit.settings.run_settings import FineTuningConfig
from bertkit.settings.validation import DataSource
from bertkit.tasks import TaskDef

# Datasets by value of --squad, if --data is not set.
SQUAD_DATASETS = {"v1": "squad", "v2": "squad_v2"}


@dataclass(frozen=True, kw_only=True)
class QaConfig(FineTuningConfig):
    """The settings of `qa`."""

    squad: Literal["v1", "v2"] | None = setting(
        None,
        "SQuAD rules: in v2 a question may have no answer. Without --data, also selects the dataset.",
        Panel.COLUMNS, is_common=True, default_text="v2 if a question has no answer, else v1",
    )  # fmt: skip
    question_column: str | None = setting(
        None, "Column of the question.", Panel.COLUMNS, default_text="guessed"
    )
    context_column: str | None = setting(
        None, "Column of the paragraph.", Panel.COLUMNS, default_text="guessed"
    )
    answers_column: str | None = setting(
        None, "Column of the gold answers and their offsets.", Panel.COLUMNS, default_text="guessed"
    )
    max_length: int | None = setting(
        None, "Maximum length of an input in tokens, including special tokens.", Panel.LONG_TEXTS,
        is_common=True, min=4, default_text="384, or the trained length of the model if that is less",
    )  # fmt: skip
    doc_stride: int | None = setting(
        None, "Tokens from the start of a window of a long paragraph to that of the next.",
        Panel.LONG_TEXTS, min=1, default_text="128, or half the room for the context if that is less",
    )  # fmt: skip
    max_query_length: int = setting(
        64, "Maximum length of a question in tokens; the rest is truncated.", Panel.LONG_TEXTS, min=1
    )
    max_answer_length: int = setting(30, "Maximum length of an answer in tokens.", Panel.LONG_TEXTS, min=1)
    n_best: int = setting(20, "Number of answers to list for each question.", Panel.LONG_TEXTS, min=1)

    def resolve_data_name(self) -> DataSource | None:
        return self.data or (SQUAD_DATASETS[self.squad] if self.squad else None)


QA = TaskDef(
    name="qa",
    help="Fine-tune on extractive question answering: SQuAD v1.1, v2.0 and similar datasets.",
    config=QaConfig,
    task="bertkit.tasks.qa.task:Qa",
    checks="bertkit.tasks.qa.checks:QaChecks",
    views=("bertkit.tasks.qa.view:QaView",),
    scores_tokens=True,
    default_max_length=384,
    labeled_unit="answer",
)
