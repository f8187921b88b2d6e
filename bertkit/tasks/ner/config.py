"""The settings and the definition of `ner`. Importing this module is fast."""

from dataclasses import dataclass
from typing import Literal

from bertkit.settings.declaration import DATA, MODEL, setting
from bertkit.settings.run_settings import FineTuningConfig
from bertkit.tasks import TaskDef

FeatureLayers = Literal["last", "second-to-last", "sum-last-4", "concat-last-4", "sum-all", "embeddings"]


@dataclass(frozen=True, kw_only=True)
class NerConfig(FineTuningConfig):
    """The settings of `ner`."""

    token_column: str | None = setting(
        None, "Name of the column of the words or of the text, or its number, counted from 0.", DATA,
        default_text="guessed",
    )  # fmt: skip
    tag_column: str | None = setting(
        None, "Name or number of the column of the tags, or of the spans in the text.", DATA,
        default_text="guessed",
    )  # fmt: skip
    context: Literal["sentence", "document"] = setting(
        "sentence",
        "Input of the model: a sentence alone, or with the surrounding sentences that --max-length admits.",
        MODEL,
    )
    features: FeatureLayers | None = setting(
        None,
        "Freeze the encoder and train only a head on the outputs of these layers, which are computed once.",
        MODEL,
        default_text="none: the encoder is fine-tuned",
    )


NER = TaskDef(
    name="ner",
    help="Fine-tune on named entities, or any tags of words.",
    config=NerConfig,
    checks="bertkit.tasks.ner.checks:NerChecks",
    views=("bertkit.tasks.ner.view:NerView",),
    reads_conll=True,
    scores_tokens=True,
    labeled_unit="word",
)
