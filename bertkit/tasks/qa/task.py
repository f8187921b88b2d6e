"""`qa`: answer a question with a span of a paragraph, or with no answer."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from bertkit.data.sources import LoadedDataset
from bertkit.data.split import SplitKeys
from bertkit.data.table import Rows, Splits
from bertkit.data.tokens import SequenceTemplate
from bertkit.errors import UserError, format_count
from bertkit.models.forward import average_log_probabilities
from bertkit.models.heads import QUESTION_HEAD, has_head, has_head_type, load_with_pooling
from bertkit.models.loading import ModelSource
from bertkit.models.losses import CrossEntropy, Loss
from bertkit.settings.declaration import fill_unset
from bertkit.stats.baseline_models import predict_overlap
from bertkit.stats.significance import Scorer
from bertkit.tasks.base import (
    InputSchema,
    Outputs,
    Task,
    TaskState,
    TransformersPipeline,
    remove_fitted_confidence,
)
from bertkit.tasks.qa.config import QA
from bertkit.tasks.qa.features import Limits, QuestionFeatures, build_question_features
from bertkit.tasks.qa.predictions import QaEvaluation, get_gold_texts, make_answer_scorer, score_answers
from bertkit.tasks.qa.rows import (
    ANSWER_COLUMNS,
    QuestionRows,
    describe_location,
    find_unanswerable,
    fix_offsets,
    group_questions,
    match_split_columns,
    normalize_questions,
    resolve_columns,
)

ANSWER_DETAILS = ("is_impossible", "plausible_answers", "answer_start")
COLUMN_SETTINGS = ("question_column", "context_column", "answers_column")
THRESHOLD_KEY = "null_odds_threshold"  # attribute of the model's config


class QaState(TaskState):
    """What a run of `qa` finds: with v2, the fitted threshold of the null odds."""

    best_metric = ("f1", 1)


class Qa(Task):
    """Extractive question answering (Devlin et al. 2018, 4.2 and 4.3).

    The answer is the span from token i to token j with the highest score S·T_i + E·T_j. S and E are the
    start and end vectors. The span from [CLS] to [CLS] represents no answer.

    Attributes:
        requires_full_coverage: Whether to refuse a stride that skips tokens between windows. Training
            refuses it; a finished run does not.
    """

    definition = QA
    label_setting = "answers_column"
    state_class = QaState
    pipeline = TransformersPipeline(task="question-answering", caveat="has no task for extractive questions")
    uses_windows = True
    combine_logits = staticmethod(average_log_probabilities)  # the n-best list is built once from the means
    requires_full_coverage = True

    @property
    def input_schema(self) -> InputSchema:
        question, context = self.config.question_column, self.config.context_column
        answer_columns = {self.config.answers_column, *ANSWER_COLUMNS, *ANSWER_DETAILS}
        return InputSchema(
            text_columns=("question", "context"),
            gold_columns=frozenset(answer_columns - {question, context}),
            hidden_columns=frozenset(["id", "answers"]),
            columns_by_flag={"question": question, "context": context},
        )

    @property
    def _column_names(self) -> tuple[Any, Any, Any]:
        """The columns of questions, paragraphs and answers."""
        config = self.config
        return config.question_column, config.context_column, config.answers_column

    # ---- rows

    def parse_dataset(self, dataset: LoadedDataset) -> LoadedDataset:
        columns = resolve_columns(dataset.splits["train"], *self._column_names)
        self.state = QaState()
        self.resolve(**dict(zip(COLUMN_SETTINGS, columns, strict=True)))
        splits: Splits = {}
        notes = list(dataset.notes)
        for name, rows in dataset.splits.items():
            questions = normalize_questions(rows, columns)
            notes += questions.notes
            splits[name] = questions
            if "answers" in questions.columns:
                splits[name], offset_notes = fix_offsets(questions, name)
                notes += offset_notes
        unanswerable = [
            (rows, index) for rows in splits.values() if (index := find_unanswerable(rows)) is not None
        ]
        if self.config.squad is None:
            self.resolve(squad="v2" if unanswerable else "v1")
            if unanswerable:
                count = sum(not answers for rows, _ in unanswerable for answers in rows["answers"])
                notes.append(f"{format_count(count, 'question')} without an answer: --squad v2")
        elif self.config.squad == "v1" and unanswerable:
            rows, index = unanswerable[0]
            raise UserError(
                f"{describe_location(rows, index)}: the question has no answer, which --squad v1 does not "
                "allow; use --squad v2"
            )
        return dataclasses.replace(dataset, splits=splits, notes=notes)

    def parse_rows(self, rows: Rows, split: str = "", require_labels: bool = False) -> tuple[Rows, list[str]]:
        questions = rows
        if not isinstance(rows, QuestionRows):
            questions = normalize_questions(rows, self._column_names)
        if not require_labels:
            return questions, []
        if "answers" not in questions.columns:
            raise UserError(f"{rows.files[0]}: no answers to score against")
        fixed, notes = fix_offsets(questions, split)
        if self.config.squad == "v1" and (index := find_unanswerable(fixed)) is not None:
            raise UserError(
                f"{describe_location(fixed, index)}: the question has no answer, which a run with --squad v1 "
                "does not allow; use a run with --squad v2"
            )
        return fixed, notes

    def map_columns(self, rows: Rows, named: Mapping[str, Any]) -> None:
        if not named:
            return
        super().map_columns(rows, named)
        matched = zip(COLUMN_SETTINGS, match_split_columns(rows, self._column_names), strict=True)
        self.resolve(**{**dict(matched), **named})

    def make_split_keys(self, rows: Rows) -> SplitKeys:
        identity, (group, unit) = rows.hash_columns(["question", "context"]), group_questions(rows)
        return SplitKeys(identity, group, stratum=np.zeros(len(rows), int), group_unit=unit)

    def validate_splits(self, splits: Splits) -> None:
        for name, rows in splits.items():
            if name in ("train", "validation") and "answers" not in rows.columns:
                hint = ", or add a column 'is_impossible'" if self.config.squad == "v2" else ""
                raise UserError(
                    f"{rows.files[0]}: no answers in column {self.config.answers_column!r}, which the {name} "
                    f"split needs; name the column of the answers with --answers-column{hint}"
                )

    def get_labels(self, rows: Rows) -> list[Any]:
        return get_gold_texts(rows)

    def replace_labels(self, rows: Rows, labels: Mapping[int, Any]) -> Rows:
        raise UserError("answers to questions cannot be changed; only 'keep' and 'drop' apply to qa")

    # ---- model

    def describe(self) -> str:
        rules = {"v1": "every question has an answer", "v2": "a question may have no answer"}
        question, context, _ = self._column_names
        return f"answers to {question} in {context}, SQuAD {self.config.squad}: {rules[self.config.squad]}"

    def configure_model(self, model_config: Any, source: ModelSource) -> Any:
        keeps_head = has_head(model_config, QUESTION_HEAD) and has_head_type(model_config, self.config.head)
        self.state.has_new_head = self.config.new_head or not keeps_head
        vars(model_config).pop(THRESHOLD_KEY, None)  # an earlier run fitted this threshold
        remove_fitted_confidence(model_config)
        model_config.num_labels = 2  # transformers' heads have this many outputs: start and end
        return model_config

    def load_state(self, model_config: Any) -> None:
        super().load_state(model_config)
        threshold = getattr(model_config, THRESHOLD_KEY, None)
        self.state.fitted_params = {} if threshold is None else {THRESHOLD_KEY: threshold}
        self.requires_full_coverage = False

    def featurize(self, rows: Rows, tokenizer: Any, training: bool = False) -> QuestionFeatures:
        features = build_question_features(
            rows["question"], rows["context"], rows.columns.get("answers"), tokenizer,
            self._resolve_limits(tokenizer), cache=self.use_cache,
        )  # fmt: skip
        longest_question = int(features.question_lengths.max())
        min_window = self.config.max_length - features.template.num_special_tokens - longest_question
        stride = features.limits.doc_stride
        if self.requires_full_coverage and stride > min_window:
            raise UserError(
                f"--doc-stride {stride}: would skip text; with --max-length {self.config.max_length} and the "
                f"longest question, a window has {min_window} tokens of the paragraph; use {min_window} or "
                "less"
            )
        return features

    def _resolve_limits(self, tokenizer: Any) -> Limits:
        """Return the length limits. The default stride is 128, but at most half of the shortest window."""
        config = self.config
        template = SequenceTemplate.from_tokenizer(tokenizer, pair=True)
        num_text_tokens = config.max_length - template.num_special_tokens
        if num_text_tokens < 2:
            raise UserError(
                f"--max-length {config.max_length}: no room for question and paragraph; use a larger value"
            )
        # A question is truncated to half of the tokens at most.
        min_window = num_text_tokens - min(config.max_query_length, num_text_tokens // 2)
        default_stride = min(128, max(1, min_window // 2))
        # The default is not stored in `self.config`, since it depends on `max_length`.
        config = fill_unset(config, {"doc_stride": default_stride})
        return Limits(**{limit.name: getattr(config, limit.name) for limit in dataclasses.fields(Limits)})

    def build_model(self, model_config: Any, source: ModelSource) -> Any:
        from transformers import AutoModelForQuestionAnswering

        return load_with_pooling(
            AutoModelForQuestionAnswering, source, model_config, self.state.has_new_head, self.config.head
        )

    def make_loss(self, features: Any) -> Loss:
        return CrossEntropy()

    # ---- results

    def evaluate(self, outputs: Outputs) -> QaEvaluation:
        threshold = self.state.fitted_params.get(THRESHOLD_KEY)
        return QaEvaluation(outputs, self.config.squad, threshold, self.state.fitted_confidence)

    def fit_decision(self, evaluation: Any) -> None:
        if self.config.squad == "v2":
            self.state.fitted_params = {THRESHOLD_KEY: evaluation.find_best_threshold()}

    def fit_baselines(self, train: Rows, rows: Rows) -> dict[str, Scorer]:
        """Return `overlap`, the sentence with most words of the question, and with v2 `majority`."""
        gold, has_answer = get_gold_texts(rows), None
        predictions = {"overlap": predict_overlap(rows["question"], rows["context"])}
        if self.config.squad == "v2":
            has_answer = np.array([bool(texts) for texts in gold], bool)
            predictions["majority"] = [""] * len(rows)
        return {
            name: make_answer_scorer(score_answers(gold, answers, self.config.squad), has_answer)
            for name, answers in predictions.items()
        }
