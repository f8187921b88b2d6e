"""The settings and the definition of `ner`. Importing this module is fast."""

from dataclasses import dataclass
from typing import Literal

from bertkit.settings.declaration import Panel, setting
from bertkit.settings.run_settings import FINETUNE, INT8, Candidate, FineTuningConfig
from bertkit.tasks import TaskDef

FeatureLayers = Literal["last", "second-to-last", "sum-last-4", "concat-last-4", "sum-all", "embeddings"]


@dataclass(frozen=True, kw_only=True)
class NerConfig(FineTuningConfig):
    """The settings of `ner`."""

    candidates = (
        Candidate("frequent_tag", "baseline"),
        Candidate("frozen-features", settings={"features": "last"}),
        FINETUNE,
        INT8,
    )

    token_column: str | None = setting(
        None, "Column of the words or the text: its name, or its number from 0.", Panel.COLUMNS,
        is_common=True, default_text="guessed",
    )  # fmt: skip
    tag_column: str | None = setting(
        None, "Column of the tags, or of the spans in the text: its name or number.", Panel.COLUMNS,
        is_common=True, default_text="guessed",
    )  # fmt: skip
    context: Literal["sentence", "document"] = setting(
        "sentence",
        "Input of the model: a sentence, or also its document up to --max-length tokens.",
        Panel.LONG_TEXTS,
    )
    features: FeatureLayers | None = setting(
        None,
        "Freeze the encoder, and train a head on last, second-to-last, sum-last-4, concat-last-4, sum-all "
        "or embeddings.",
        Panel.MODEL,
        default_text="none",
    )


NER = TaskDef(
    name="ner",
    help="Fine-tune on named entities, or any tags of words.",
    config=NerConfig,
    task="bertkit.tasks.ner.task:Ner",
    checks="bertkit.tasks.ner.checks:NerChecks",
    views=("bertkit.tasks.ner.view:NerView",),
    reads_conll=True,
    scores_tokens=True,
    labeled_unit="word",
)
