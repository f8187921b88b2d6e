"""The settings and the definitions of `classify` and `nli`. Importing this module is fast."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from bertkit.settings.declaration import Panel, Pooling, list_settings, pooling_setting, setting
from bertkit.settings.run_settings import FINETUNE, INT8, Candidate, FineTuningConfig
from bertkit.tasks import TaskDef

TEXT_CHECKS = "bertkit.tasks.text.checks:SequenceChecks"


@dataclass(frozen=True, kw_only=True)
class SequenceConfig(FineTuningConfig):
    """The settings that `classify` and `nli` share."""

    label_column: str | None = setting(
        None, "Column of the label.", Panel.COLUMNS, is_common=True, default_text="guessed"
    )
    long_texts: Literal["head", "tail", "head+tail", "windows"] = setting(
        "head",
        "Keep head, tail or head+tail of a text over --max-length, or read all of it in windows.",
        Panel.LONG_TEXTS,
    )
    pooling: Pooling = pooling_setting()
    shots: int | None = setting(
        None, "Train on N rows per class or label, sampled at random.", Panel.ROWS, min=1,
        replaces=("max_train_samples",),
    )  # fmt: skip
    class_weights: Literal["balanced"] | None = setting(
        None, "Weight classes in the loss by the inverse of their frequency.", Panel.FEW_LABELS
    )
    label_smoothing: float = setting(
        0.0, "Target probability to spread over all classes.", Panel.FEW_LABELS, min=0.0,
        max=0.99,
    )  # fmt: skip


FITTED_HEAD_METHODS = ("contrastive", "linear-probe")  # the head is fitted to the vectors of texts
# Linear models that predict without an encoder. Some are trained without one, too.
LINEAR_TEXT_METHODS = ("tfidf", "tfidf-chars", "static", "hybrid")
WITHOUT_ENCODER = ("tfidf", "tfidf-chars")
# Settings of the sequences of tokens that an encoder reads, and of its head.
ENCODER_INPUT_SETTINGS = (
    "max_length", "long_texts", "pooling", "head", "new_head", "label_smoothing", "subject_column",
    "object_column", "eval_batch_size", "bf16", "nproc", "temperature", "out_of_scope",
)  # fmt: skip
# Settings without effect on such a head, and the reason.
FITTED_HEAD_CONFLICTS = {
    "head": "the head is fitted to one vector per text",
    "label_smoothing": "the head is fitted by logistic regression",
    "pooling": "the method chooses the pooling",
    **dict.fromkeys(("subject_column", "object_column"), "the markers of entities are not trained"),
}


# Up to this number, contrastive training was better than fine-tuning (docs/few-labels.md).
MAX_CONTRASTIVE_ROWS = 100


@dataclass(frozen=True, kw_only=True)
class ClassifyConfig(SequenceConfig):
    """The settings of `classify`."""

    candidates = (
        Candidate("majority", "baseline"),
        *(Candidate(name, settings={"method": name}) for name in ("tfidf", "tfidf-chars", "hybrid")),
        Candidate("linear-probe", settings={"method": "linear-probe"}),
        FINETUNE,
        Candidate("windows", settings={"long_texts": "windows"}, needs_long_texts=True),
        Candidate("contrastive", settings={"method": "contrastive"}, max_rows_per_class=MAX_CONTRASTIVE_ROWS),
        INT8,
        Candidate("distilled", "distilled"),
    )

    text_column: str | None = setting(
        None, "Column of the text.", Panel.COLUMNS, is_common=True, default_text="guessed"
    )
    text_pair_column: str | None = setting(
        None, "Column of the second text, for pairs.", Panel.COLUMNS, is_common=True, default_text="guessed"
    )
    subject_column: str | None = setting(
        None, "Column of the first entity of a relation, which is marked in the text.", Panel.COLUMNS
    )
    object_column: str | None = setting(None, "Column of the second entity of a relation.", Panel.COLUMNS)
    problem: Literal["binary", "multi-class", "multi-label", "regression"] | None = setting(
        None, "Kind of labels: binary, multi-class, multi-label or regression.", Panel.COLUMNS,
        default_text="guessed",
    )  # fmt: skip
    method: Literal[
        "finetune",
        "contrastive",
        "linear-probe",
        "static",
        "hybrid",
        "tfidf",
        "tfidf-chars",
    ] = setting(  # type: ignore[assignment]
        "finetune",
        "finetune; contrastive or linear-probe (few labels); tfidf, tfidf-chars, static or hybrid (linear "
        "models, thousands of rows per second).",
        Panel.FEW_LABELS,
        plugins="method",
    )
    positive_label: str | None = setting(
        None, "Label that positive_f1 scores if there are two labels.", Panel.COLUMNS,
        default_text="guessed from the names",
    )  # fmt: skip

    out_of_scope: str | None = setting(
        None,
        "Find texts of no class: a file of such texts, the label of such rows, or sample (shipped texts).",
        Panel.FEW_LABELS, is_path=True, default_text="each text has a class",
    )  # fmt: skip

    def list_unshardable_flags(self) -> list[str]:
        return ["--out-of-scope"] if self.out_of_scope else []

    def list_ineffective_settings(self) -> dict[str, str]:
        reasons: dict[str, str] = {}
        if self.method in FITTED_HEAD_METHODS:
            reasons |= FITTED_HEAD_CONFLICTS
        if self.method in LINEAR_TEXT_METHODS:
            names = [*list_settings(type(self), "encoder", "steps"), *ENCODER_INPUT_SETTINGS]
            reasons |= dict.fromkeys(names, "a linear model reads whole texts, and no encoder is trained")
            if self.method in WITHOUT_ENCODER:
                reasons["model"] = "no encoder is used"
        if self.method == "linear-probe":
            names = list_settings(type(self), "encoder", "steps")
            reasons |= dict.fromkeys(names, "the encoder is not trained")
            reasons["num_layers"] = "the head reads the vectors of the last layer"
        return {name: f"with --method {self.method}, {reason}" for name, reason in reasons.items()}


CLASSIFY = TaskDef(
    name="classify",
    help="Fine-tune a classifier or a regressor on single texts or pairs.",
    config=ClassifyConfig,
    task="bertkit.tasks.text.task:Classify",
    checks=TEXT_CHECKS,
    views=(
        "bertkit.tasks.text.view:ClassificationView",
        "bertkit.tasks.text.view:MultiLabelView",
        "bertkit.tasks.text.view:RegressionView",
    ),
    labeled_unit="text",
)


@dataclass(frozen=True, kw_only=True)
class NliConfig(SequenceConfig):
    """The settings of `nli`."""

    candidates = (Candidate("hypothesis_only", "baseline"), FINETUNE, INT8)
    column_aliases: ClassVar[Mapping[str, str]] = {
        "text_column": "premise_column", "text_pair_column": "hypothesis_column",
    }  # fmt: skip

    premise_column: str | None = setting(
        None, "Column of the premise.", Panel.COLUMNS, is_common=True, default_text="guessed"
    )
    hypothesis_column: str | None = setting(
        None, "Column of the hypothesis.", Panel.COLUMNS, is_common=True, default_text="guessed"
    )


NLI = TaskDef(
    name="nli",
    help="Fine-tune on premise and hypothesis: entailment, neutral, contradiction.",
    config=NliConfig,
    task="bertkit.tasks.text.task:Nli",
    checks=TEXT_CHECKS,
    views=("bertkit.tasks.text.view:ClassificationView",),
    labeled_unit="text",
)
