"""`qa`: the answer to a question as a stretch of a paragraph, or that there is none."""

import dataclasses
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from bertkit.config import DATA, MODEL, RunConfig, fill_unset, setting
from bertkit.errors import UserError
from bertkit.tasks.base import Outputs, Scores, Task
from bertkit.tasks.qa_predictions import AnswerDecoder

if TYPE_CHECKING:
    from bertkit.checks.findings import Finding
    from bertkit.data.loading import LoadedDataset
    from bertkit.data.qa.features import Limits, QuestionFeatures
    from bertkit.data.rows import Rows, Splits
    from bertkit.data.split import SplitKeys
    from bertkit.data.token_counts import TokenCounts
    from bertkit.metrics.significance import Scorer
    from bertkit.modeling.loading import ModelSource
    from bertkit.modeling.losses import Loss
    from bertkit.utils.reporting import Reporter

SQUAD_DATASETS = {"v1": "squad", "v2": "squad_v2"}  # what --squad names where there is no --data
DEFAULT_DOC_STRIDE = 128
THRESHOLD_KEY = "null_odds_threshold"  # in the model's config


@dataclass(frozen=True, kw_only=True)
class QaConfig(RunConfig):
    """The settings of `qa` beside the shared ones."""

    squad: Literal["v1", "v2"] | None = setting(
        None,
        "The data set; with --data the rules: v1, each question has an answer, or v2, it may have none.",
        DATA,
        default_text="with --data v2 where a question has no answer",
    )
    question_column: str | None = setting(None, "The question.", DATA, default_text="guessed")
    context_column: str | None = setting(None, "The paragraph.", DATA, default_text="guessed")
    answers_column: str | None = setting(
        None, "The right answers, by text and offset.", DATA, default_text="guessed"
    )
    max_length: int | None = setting(
        None, "Longest input in pieces, special ones included.", MODEL, min=4, default_text="384"
    )
    doc_stride: int | None = setting(
        None,
        "Pieces from one window of a long paragraph to the next.",
        MODEL,
        min=1,
        default_text="128, at most half a window",
    )
    max_query_length: int = setting(64, "Pieces that are kept of a question.", MODEL, min=1)
    max_answer_length: int = setting(30, "Most pieces of an answer.", MODEL, min=1)
    n_best: int = setting(20, "Answers told of each question.", MODEL, min=1)

    def resolve_data_name(self) -> str | None:
        """`--squad` alone names a data set."""
        return self.data or (SQUAD_DATASETS[self.squad] if self.squad else None)


class Qa(Task):
    """A start vector S and an end vector E: the span with the highest S·T_i + E·T_j is the answer.

    Devlin et al. 2018, 4.2 and 4.3. No answer is the span from [CLS] to [CLS].

    Attributes:
        answering: from scores to answers, known after `columns`.
        strict: whether windows that would skip text are refused: not of a finished run.
    """

    name = "qa"
    help = "Fine-tune on extractive question answering: SQuAD v1.1, v2.0 and their like."
    Config = QaConfig
    hub_task = "question-answering"
    best_metric = ("f1", 1)
    uses_windows = True
    default_max_length = 384
    text_columns = ["question", "context"]
    decoder: AnswerDecoder
    requires_full_coverage = True

    # ---- rows

    def parse_dataset(self, dataset: "LoadedDataset") -> "LoadedDataset":
        """One row a question with its answers where they stand, and the rules that hold."""
        from bertkit.data.qa.repair import fix_offsets
        from bertkit.data.qa.rows import normalize_questions, resolve_columns

        train, config = dataset.splits["train"], self.config
        names = resolve_columns(train, config.question_column, config.context_column, config.answers_column)
        question, context, answers = names
        self.config = fill_unset(
            config, {"question_column": question, "context_column": context, "answers_column": answers}
        )
        splits, notes = {}, list(dataset.notes)
        for split, rows in dataset.splits.items():
            flat = normalize_questions(rows, names)
            splits[split], more = fix_offsets(flat, split) if "answers" in flat.columns else (flat, [])
            notes += [*flat.notes, *more]
        self._choose_rules(splits)
        return dataclasses.replace(dataset, splits=splits, notes=notes)

    def _choose_rules(self, splits: "Splits") -> None:
        """v2 where a question has no answer, unless v1 is asked for.

        Raises:
            UserError: v1 is asked for, and a question has no answer.
        """
        from bertkit.data.qa.answers import describe_location
        from bertkit.data.qa.rows import find_unanswerable

        for rows in splits.values():
            index = find_unanswerable(rows)
            if index is not None and self.config.squad == "v1":
                raise UserError(
                    f"{describe_location(rows, index)}: the question has no answer, which --squad v1 does not "
                    "know; use --squad v2"
                )
            if index is not None:
                self.config = fill_unset(self.config, {"squad": "v2"})
        self.config = fill_unset(self.config, {"squad": "v1"})
        self.decoder = AnswerDecoder(self.config.squad)

    def split_keys(self, rows: "Rows") -> "SplitKeys":
        """Whole articles are set aside, so that no paragraph is on both sides."""
        from bertkit.data.qa import rows as qa_rows
        from bertkit.data.split import SplitKeys

        texts, together = rows.zip_columns(["question", "context"]), qa_rows.compute_group_ids(rows)
        return SplitKeys(texts, together, [0] * len(rows), qa_rows.choose_split_unit(rows))

    def validate_splits(self, splits: "Splits") -> None:
        """Training and validation have answers."""
        for name, rows in splits.items():
            if name in ("train", "validation") and "answers" not in rows.columns:
                none = ", or a column 'is_impossible' that says that there are none"
                raise UserError(
                    f"{rows.files[0]}: no answers in column {self.config.answers_column!r}; the {name} split "
                    f"needs them (--answers-column){none if self.config.squad == 'v2' else ''}"
                )

    def normalize_labeled_rows(self, rows: "Rows", split: str) -> tuple["Rows", list[str]]:
        """Questions with answers, by the run's rules."""
        from bertkit.data.qa.answers import describe_location
        from bertkit.data.qa.repair import fix_offsets
        from bertkit.data.qa.rows import find_unanswerable

        flat = self.normalize_rows(rows)
        if "answers" not in flat.columns:
            raise UserError(f"{rows.files[0]}: no answers to score with")
        flat, notes = fix_offsets(flat, split)
        if self.config.squad == "v1" and (index := find_unanswerable(flat)) is not None:
            way = "which a run of v1 does not know; take one of v2"
            raise UserError(f"{describe_location(flat, index)}: the question has no answer, {way}")
        return flat, notes

    def normalize_rows(self, rows: "Rows") -> "Rows":
        """Every row has a question and a paragraph."""
        from bertkit.data.qa.rows import QuestionRows, normalize_questions

        if isinstance(rows, QuestionRows):
            return rows
        config = self.config
        return normalize_questions(
            rows, (config.question_column, config.context_column, config.answers_column)
        )

    @property
    def gold_columns(self) -> set[str]:
        """The answers, and what SQuAD says of them."""
        from bertkit.data.qa.rows import ANSWER_COLUMNS

        said = {self.config.answers_column, *ANSWER_COLUMNS, "is_impossible", "plausible_answers"}
        return said - {self.config.question_column, self.config.context_column}

    @property
    def dropped_columns(self) -> set[str]:
        """The id and the answers."""
        return {"id", "answers"}

    @property
    def input_flags(self) -> dict[str, str]:
        """A question and a paragraph."""
        return {"question": self.config.question_column, "context": self.config.context_column}

    def describe(self) -> str:
        """The rules."""
        rules = {"v1": "every question has an answer", "v2": "a question may have no answer"}
        return f"answers to {self.config.question_column} in {self.config.context_column}, SQuAD " + (
            f"{self.config.squad}: {rules[self.config.squad]}"
        )

    # ---- looked at before training

    def load_examples(self, reporter: "Reporter") -> "LoadedDataset":
        """A row a question."""
        from bertkit.data.qa.rows import flatten_articles, is_nested

        found = self.load_data(reporter)
        flat = {
            name: flatten_articles(rows) if is_nested(rows) else rows for name, rows in found.splits.items()
        }
        return dataclasses.replace(found, splits=flat)

    def extract_gold(self, rows: "Rows") -> list[Hashable] | None:
        """Whether there is an answer: answers themselves differ from person to person."""
        if "answers" not in rows.columns:
            return None
        return ["answered" if some else "no answer" for some in rows["answers"]]

    def count_labels(self, rows: "Rows") -> dict[str, int]:
        """With v2."""
        return super().count_labels(rows) if self.config.squad == "v2" else {}

    def check_rows(
        self, dataset: "LoadedDataset", parsed: "LoadedDataset", notes: Sequence[str]
    ) -> Iterator["Finding"]:
        """Answers not at their offset, with their rows where notes have ids; paragraphs in two splits."""
        from bertkit.checks import qa
        from bertkit.data.qa.rows import normalize_questions

        config = self.config
        names = (config.question_column, config.context_column, config.answers_column)
        for split, rows in dataset.splits.items():
            yield from qa.find_misplaced_answers(split, normalize_questions(rows, names))
        for split, rows in parsed.splits.items():
            if split != "train":
                yield from qa.find_shared_paragraphs(split, parsed.splits["train"], rows)

    def count_tokens(self, rows: "Rows", tokenizer: Any) -> "TokenCounts":
        """Of the question and its whole paragraph."""
        from bertkit.data.token_counts import TokenCounts

        return TokenCounts.from_questions(rows["question"], rows["context"], tokenizer)

    def check_tokens(self, split: str, rows: "Rows", tokenizer: Any) -> Iterator["Finding"]:
        """Answers that no window holds."""
        from bertkit.checks.qa import find_lost_answers

        return find_lost_answers(split, rows, self.featurize(rows, tokenizer))

    # ---- model

    def configure_model(self, model_config: Any, source: "ModelSource") -> Any:
        """A model that has a head for answers keeps it: going on from one data set to the next."""
        from bertkit.modeling.heads import QUESTION_HEAD, has_head, has_head_type

        fits = has_head(model_config, QUESTION_HEAD) and has_head_type(model_config, self.config.head)
        self.has_new_head = self.config.new_head or not fits
        vars(model_config).pop(THRESHOLD_KEY, None)  # another run's
        model_config.num_labels = 2  # the stock heads make their outputs by it, whatever a model had before
        return model_config

    def load_state(self, model_config: Any) -> None:
        """The rules and tau, as chosen on the validation rows."""
        self.decoder = AnswerDecoder(self.config.squad, getattr(model_config, THRESHOLD_KEY, None))
        self.has_new_head, self.requires_full_coverage = False, False

    def featurize(self, rows: "Rows", tokenizer: Any) -> "QuestionFeatures":
        """Questions with the windows of their paragraphs."""
        from bertkit.data.qa.features import build_question_features

        features = build_question_features(
            rows["question"], rows["context"], rows.columns.get("answers"), tokenizer,
            self._limits(tokenizer), cache=self.use_cache,
        )  # fmt: skip
        room = (
            self.config.max_length
            - features.template.num_special_tokens
            - int(features.question_lengths.max())
        )
        stride = features.limits.doc_stride
        if self.requires_full_coverage and stride > room:
            raise UserError(
                f"--doc-stride {stride} would skip text: beside the longest question a "
                f"window of --max-length {self.config.max_length} has {room} pieces of the paragraph; take "
                f"{room} or less"
            )
        return features

    def _limits(self, tokenizer: Any) -> "Limits":
        """The settings; the step of windows is 128, but at most half of the least room for a paragraph."""
        from bertkit.data.qa.features import Limits
        from bertkit.data.tokenization import SequenceTemplate

        room = (
            self.config.max_length - SequenceTemplate.from_tokenizer(tokenizer, pair=True).num_special_tokens
        )
        if room < 2:
            raise UserError(
                f"--max-length {self.config.max_length}: no room for a question and a paragraph; take more"
            )
        least = room - min(self.config.max_query_length, room // 2)
        config = fill_unset(
            self.config, {"doc_stride": min(DEFAULT_DOC_STRIDE, max(1, least // 2))}
        )  # not kept: by length
        return Limits(**{item.name: getattr(config, item.name) for item in dataclasses.fields(Limits)})

    def build_model(self, model_config: Any, source: "ModelSource") -> Any:
        """`AutoModelForQuestionAnswering`."""
        from transformers import AutoModelForQuestionAnswering

        from bertkit.modeling.pooling import load_with_pooling

        return load_with_pooling(
            AutoModelForQuestionAnswering, source, model_config, self.has_new_head, self.config.head
        )

    def loss(self, train: Any) -> "Loss":
        """Cross-entropy of the start and of the end over the places of the window."""
        from bertkit.modeling.losses import CrossEntropy

        return CrossEntropy()

    def fit_decision(self, outputs: Outputs) -> dict[str, Any]:
        """Tau, with v2."""
        if self.config.squad == "v1":
            return {}
        self.decoder = dataclasses.replace(self.decoder, threshold=self.decoder.fit_threshold(outputs))
        return self.fitted_params

    @property
    def fitted_params(self) -> dict[str, Any]:
        """Tau, where it is known."""
        threshold = self.decoder.threshold
        return {} if threshold is None else {THRESHOLD_KEY: threshold}

    # ---- results

    def compute_metrics(self, outputs: Outputs) -> Scores:
        """`exact` and `f1` in percent as the official scripts print them, and with v2 their parts."""
        return self.decoder.compute_metrics(outputs)

    def scorer(self, outputs: Outputs) -> "Scorer":
        """By questions."""
        return self.decoder.scorer(outputs)

    def compute_details(self, outputs: Outputs) -> dict[str, Scores]:
        """With v2 exact and F1 at some thresholds."""
        return self.decoder.compute_details(outputs)

    def iter_predictions(self, outputs: Outputs) -> Iterator[dict[str, Any]]:
        """`answer`, its `start` and `end` in the paragraph, `score`, `null_odds`."""
        return self.decoder.iter_records(outputs)

    def iter_extra_scores(self, outputs: Outputs) -> Iterator[dict[str, Any]]:
        """The best answers of each question."""
        nbest = self.decoder.merge_nbest(outputs)
        return ({"nbest": some} for some in self.decoder.iter_nbest(nbest, outputs.rows))

    def prediction_files(self, outputs: Outputs) -> dict[str, Iterator[str]]:
        """`predictions.json`, `nbest_predictions.json`, `null_odds.json`: what the official tools read."""
        return self.decoder.prediction_files(outputs)

    def baselines(self, train: "Rows", rows: "Rows") -> dict[str, Scores]:
        """`overlap`: the sentence with the most words of the question; with v2 `majority`: no answer."""
        return self.decoder.score_baselines(rows)
