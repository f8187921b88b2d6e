"""`ner`: a tag for each token; entities are what is scored."""

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from bertkit.config import DATA, MODEL, RunConfig, setting
from bertkit.errors import UserError, format_list
from bertkit.tasks.base import Outputs, Pipeline, Scores, Task
from bertkit.tasks.ner_predictions import TagDecoder

if TYPE_CHECKING:
    from bertkit.checks.findings import Finding
    from bertkit.data import features
    from bertkit.data.loading import LoadedDataset
    from bertkit.data.ner.features import WordFeatures
    from bertkit.data.ner.schemes import Scheme
    from bertkit.data.rows import Rows, Splits
    from bertkit.data.split import SplitKeys
    from bertkit.data.token_counts import TokenCounts
    from bertkit.metrics.significance import Scorer
    from bertkit.modeling.loading import ModelSource
    from bertkit.modeling.losses import Loss
    from bertkit.utils.reporting import Reporter

FROZEN_DEFAULTS = {"learning_rate": 1e-3, "epochs": 10.0}
FeatureLayers = Literal["last", "second-to-last", "sum-last-4", "concat-last-4", "sum-all", "embeddings"]


@dataclass(frozen=True, kw_only=True)
class NerConfig(RunConfig):
    """The settings of `ner` beside the shared ones."""

    token_column: str | None = setting(
        None, "The tokens, or the text: a column's name, or its number from 0.", DATA, default_text="guessed"
    )
    tag_column: str | None = setting(
        None, "The tags, or the spans in the text: a column's name or number.", DATA, default_text="guessed"
    )
    context: Literal["sentence", "document"] = setting(
        "sentence", "What is read around a sentence: nothing, or its document, as far as it fits.", MODEL
    )
    features: FeatureLayers | None = setting(
        None,
        "Freeze the encoder and learn on these of its layers; their vectors are computed once.",
        MODEL,
        default_text="none, the encoder is fine-tuned",
    )


class Ner(Task):
    """The first piece of a token carries its tag; the best legal sequence of tags is predicted.

    Devlin et al. 2018, 5.3. Inside, tags are IOB2 whatever the data's scheme, and entities are what
    conlleval takes for them; predictions are written back in the scheme of the data.

    Attributes:
        scheme, types: of the training rows' tags and entities, known after `columns`.
        tagging: from logits to tags, known after `adopt`.
    """

    name = "ner"
    help = "Fine-tune on named entities, or any tags of tokens."
    Config = NerConfig
    hub_task = "token-classification"
    reads_word_lines = True
    best_metric = ("f1", 1)
    uses_windows = True
    text_columns = ["tokens"]
    scheme: "Scheme"
    types: list[str]
    decoder: TagDecoder

    @property
    def pipeline(self) -> Pipeline | None:  # type: ignore[override]
        """Of the stock model; others are bertkit's own."""
        stock = Pipeline(self.hub_task, {"aggregation_strategy": "first"}, {})
        return None if self._is_tagger else stock

    @property
    def _is_tagger(self) -> bool:
        """Whether the model is another than the stock one: on several layers, or with a BiLSTM."""
        return self.config.features is not None or self.config.head == "bilstm"

    # ---- rows

    def parse_dataset(self, dataset: "LoadedDataset") -> "LoadedDataset":
        """Tokens and tags in one form, the scheme of the tags, and what is illegal in it."""
        from bertkit.data.ner import rows as ner_rows
        from bertkit.data.ner.documents import add_document_positions
        from bertkit.data.ner.rows import resolve_columns

        train = dataset.splits["train"]
        token, tag = resolve_columns(train, self.config.token_column, self.config.tag_column)
        self.config = dataclasses.replace(self.config, token_column=token, tag_column=tag)
        rows, scheme, notes = ner_rows.parse_split(train, "train", (token, tag), None)
        if scheme is None:
            raise UserError(f"{train.files[0]}: no tags in column {tag!r} to learn from")
        splits, notes = {"train": rows}, [*dataset.notes, *notes]
        for name in (
            name for name in dataset.splits if name != "train"
        ):  # read after it, whatever order the files have
            splits[name], _, more = ner_rows.parse_split(dataset.splits[name], name, (token, tag), scheme)
            notes += more
        splits = {name: splits[name] for name in dataset.splits}
        if self.config.context == "document":
            splits = {name: add_document_positions(rows) for name, rows in splits.items()}
        self.scheme, self.types = scheme, ner_rows.collect_types(splits["train"], tag)
        tags = [tag for some in splits["train"]["iob2"] for tag in some]
        self.outside_fraction = tags.count("O") / len(tags)
        return dataclasses.replace(dataset, splits=splits, notes=notes)

    def split_keys(self, rows: "Rows") -> "SplitKeys":
        """The tokens; of sentences with entities and without the same share is set aside."""
        from bertkit.data.split import SplitKeys

        tokens = [tuple(some) for some in rows["tokens"]]
        tags = rows.columns.get("iob2", [()] * len(rows))
        return SplitKeys(tokens, tokens, [any(tag != "O" for tag in some) for some in tags])

    def validate_splits(self, splits: "Splits") -> None:
        """Tags are there in training and validation, and of types that training has."""
        from bertkit.data.ner.rows import check_types

        for name, rows in splits.items():
            if "iob2" in rows.columns:
                check_types(rows, self.types)
            elif name == "validation":
                raise UserError(
                    f"{rows.files[0]}: no tags in column {self.config.tag_column!r} to score with"
                )

    def normalize_labeled_rows(self, rows: "Rows", split: str) -> tuple["Rows", list[str]]:
        """Sentences with tags of types that the run knows."""
        from bertkit.data.ner import rows as ner_rows
        from bertkit.data.ner.documents import add_document_positions

        names = (self.config.token_column, self.config.tag_column)
        rows, scheme, notes = ner_rows.parse_split(rows, split, names, self.scheme)
        if scheme is None:
            raise UserError(f"{rows.files[0]}: no tags in column {names[1]!r} to score with")
        ner_rows.check_types(rows, self.types)
        return (add_document_positions(rows) if self.config.context == "document" else rows), notes

    def normalize_rows(self, rows: "Rows") -> "Rows":
        """Every row has tokens, or a text; with `--context document` its place in its document, if told."""
        from bertkit.data.ner import rows as ner_rows
        from bertkit.data.ner.documents import add_document_positions, find_document_column
        from bertkit.data.ner.rows import match_split_columns

        if ner_rows.is_normalized(rows):
            return rows
        token, _ = match_split_columns(rows, (self.config.token_column, self.config.tag_column))
        rows = ner_rows.normalize_sentences(rows, token, None)
        in_documents = self.config.context == "document" and find_document_column(rows)
        return add_document_positions(rows) if in_documents else rows

    def group_ids(self, rows: "Rows") -> list[Any] | None:
        """Documents, where they are read around a sentence."""
        from bertkit.data.ner.documents import find_document_column

        column = find_document_column(rows) if self.config.context == "document" else None
        return rows[column] if column else None

    @property
    def input_flags(self) -> dict[str, str]:
        """A text, of which words are made as in training on texts."""
        return {"text": self.config.token_column}

    def describe(self) -> str:
        """Tokens, tags, their scheme and types, and how many tokens are outside of all."""
        columns = [self.config.token_column, self.config.tag_column]
        tokens, tags = (f"column {name}" if name.isdecimal() else name for name in columns)
        return (
            f"{tokens} tagged by {tags} in {self.scheme}, types {format_list(self.types)}; {self.outside_fraction:.1%} of "
            "the training tokens are O"
        )

    @property
    def gold_columns(self) -> set[str]:
        """The tags."""
        return {self.config.tag_column}

    @property
    def dropped_columns(self) -> set[str]:
        """Tokens, text and tags, and what stands around a sentence."""
        return {"tokens", "text", "tags", "iob2", "context"}

    # ---- looked at before training

    def extract_texts(self, rows: "Rows") -> list[Sequence[str]]:
        """The sentences."""
        return [rows["text"]]

    def extract_gold(self, rows: "Rows") -> list[Hashable] | None:
        """The tags."""
        return [tuple(tags) for tags in rows["iob2"]] if "iob2" in rows.columns else None

    def count_labels(self, rows: "Rows") -> dict[str, int]:
        """Entities by type."""
        from bertkit.checks.ner import count_entities

        return dict(count_entities(rows).most_common()) if "iob2" in rows.columns else {}

    def check_balance(self, counts: "Mapping[str, Mapping[str, int]]") -> Iterator["Finding"]:
        """Types of entities that are rare, or that nothing is scored on."""
        from bertkit.checks.ner import find_rare_types

        return find_rare_types(counts)

    def check_rows(
        self, dataset: "LoadedDataset", parsed: "LoadedDataset", notes: Sequence[str]
    ) -> Iterator["Finding"]:
        """Faults of the tags by kind, schemes that are mixed, types seen once, sentences without an end."""
        from bertkit.checks import ner
        from bertkit.data.ner.rows import WIDENED_SPANS_NOTE

        for split, rows in parsed.splits.items():
            yield from ner.find_empty_rows(split, dataset.splits[split], rows)
            yield from ner.find_long_sentences(split, rows)
            if "tags" in rows.columns:
                yield from ner.find_scheme_mismatch(split, rows, self.scheme)
                yield from ner.find_illegal_tags(split, rows, self.scheme)
        yield from ner.find_singleton_types(parsed.splits["train"])
        yield from super().check_rows(dataset, parsed, [note for note in notes if WIDENED_SPANS_NOTE in note])

    def count_tokens(self, rows: "Rows", tokenizer: Any) -> "TokenCounts":
        """Of the sentence by itself."""
        from bertkit.data.token_counts import TokenCounts

        return TokenCounts.from_texts_with_offsets(rows["text"], tokenizer)

    def check_tokens(self, split: str, rows: "Rows", tokenizer: Any) -> Iterator["Finding"]:
        """Tokens of which no piece is left."""
        from bertkit.checks.ner import find_words_without_tokens
        from bertkit.data.ner.words import WordSpans, encode_words

        sentences = WordSpans.from_words(rows["tokens"], rows["text"])
        carrier = encode_words(sentences, tokenizer).first_token
        return find_words_without_tokens(split, rows, carrier, sentences.offsets)

    # ---- model

    def configure_model(self, model_config: Any, source: "ModelSource") -> Any:
        """Take the model's own order of tags where they are ours; refuse where they are others."""
        from bertkit.data.ner.tags import TagSet, build_iob2_labels
        from bertkit.modeling.heads import TAGGER_HEAD, TOKEN_HEAD, match_labels, set_labels
        from bertkit.modeling.tagger import select_layers

        self._check_frozen()
        select_layers(model_config, self.config.features)  # has it so many?
        names, kind = build_iob2_labels(self.types), TAGGER_HEAD if self._is_tagger else TOKEN_HEAD
        if not self.config.new_head:
            self.has_new_head, names = match_labels(model_config, names, source.name, kind)
        self.decoder = TagDecoder(TagSet(names), self.scheme)
        model_config.tag_scheme = dataclasses.asdict(self.scheme)
        return set_labels(model_config, names)

    def _check_frozen(self) -> None:
        """Raise where settings speak of layers that are not trained."""
        for flag, value in (("--freeze", self.config.freeze), ("--layer-decay", self.config.layer_decay)):
            if self.config.features and value:
                raise UserError(
                    f"{flag} {value}: --features freezes the whole encoder; leave one of them out"
                )

    def load_state(self, model_config: Any) -> None:
        """The tags in the order of the model's outputs, and the scheme they are written in."""
        from bertkit.data.ner.schemes import Scheme
        from bertkit.data.ner.tags import TagSet

        tags = TagSet([model_config.id2label[number] for number in range(model_config.num_labels)])
        self.scheme, self.types = Scheme(**model_config.tag_scheme), tags.types
        self.decoder = TagDecoder(tags, self.scheme)
        self.has_new_head = False

    def featurize(self, rows: "Rows", tokenizer: Any) -> "WordFeatures":
        """Sentences in windows, each token decided once."""
        from bertkit.data.ner.features import build_word_features

        return build_word_features(
            rows["tokens"], rows["text"], self.decoder.encode_gold(rows), tokenizer, self.config.max_length,
            rows["context"] if self.config.context == "document" else None, cache=self.use_cache,
        )  # fmt: skip

    def default_hyperparameters(self) -> dict[str, Any]:
        """A head on frozen vectors starts from nothing: higher rates, more epochs."""
        return FROZEN_DEFAULTS if self.config.features else {}

    def build_model(self, model_config: Any, source: "ModelSource") -> Any:
        """`AutoModelForTokenClassification`, or a `Tagger` on some layers or with a BiLSTM."""
        from transformers import AutoModelForTokenClassification

        from bertkit.modeling.loading import load_model
        from bertkit.modeling.tagger import load_tagger

        if self._is_tagger:
            return load_tagger(
                source, model_config, self.config.features, self.config.head, self.has_new_head
            )
        return load_model(AutoModelForTokenClassification, source, model_config, self.has_new_head)

    def precompute_features(
        self, model: Any, features: Any, collator: Any, reporter: "Reporter"
    ) -> "features.Features":
        """The vectors of a frozen encoder."""
        from bertkit.modeling.frozen_vectors import VectorFeatures, compute_vectors

        if self.config.features is None:
            return features
        size = self.config.eval_batch_size
        return VectorFeatures(features, compute_vectors(model, features, collator, size, reporter))

    def verify_label_order(self, score_sample: Callable[[], Outputs]) -> None:
        """Refuse a head under whose names entities are of the wrong type and under others right."""
        from bertkit.modeling.heads import verify_label_order

        types, predicted = self.decoder.compare_entity_types(score_sample())
        names, model = [*self.types, "O"], str(self.config.model)
        if len(types):
            verify_label_order(types, predicted, names, model, "tokens in entities")

    def loss(self, train: "features.Features") -> "Loss":
        """Cross-entropy over the tokens."""
        from bertkit.modeling.losses import CrossEntropy

        return CrossEntropy()

    # ---- results

    def compute_metrics(self, outputs: Outputs) -> Scores:
        """`precision`, `recall` and `f1` of entities, `accuracy` of tokens."""
        from bertkit.metrics.entities import score_sentences

        return score_sentences(*self.decoder.count_entities(outputs))

    def scorer(self, outputs: Outputs) -> "Scorer":
        """By sentences, since the tokens of one are no independent draws."""
        from bertkit.metrics.entities import score_sentences
        from bertkit.metrics.significance import Scorer

        entities, tokens = self.decoder.count_entities(outputs)
        entities = entities.sum(1)
        return Scorer(lambda rows: score_sentences(entities[rows], tokens[rows]), len(tokens))

    def compute_details(self, outputs: Outputs) -> dict[str, Scores]:
        """The scores of each type."""
        from bertkit.metrics.entities import score_types

        return score_types(self.decoder.count_entities(outputs)[0], self.decoder.tags)

    def iter_predictions(self, outputs: Outputs) -> Iterator[dict[str, Any]]:
        """`tokens`, `gold` and `predicted` tags in the data's scheme, and `entities` by characters."""
        return self.decoder.iter_records(outputs)

    def iter_extra_scores(self, outputs: Outputs) -> Iterator[dict[str, Any]]:
        """The probability of each token's predicted tag."""
        return ({"probabilities": some} for some in self.decoder.compute_probabilities(outputs))

    def prediction_files(self, outputs: Outputs) -> dict[str, Iterator[str]]:
        """`predictions.conll`: token, gold tag (where there is one), predicted tag."""
        from bertkit.data.readers.conll import format_conll

        gold, predicted, _ = self.decoder.restore_schemes(outputs)
        return {
            "predictions.conll": format_conll(
                [outputs.rows["tokens"], *([] if gold is None else [gold]), predicted]
            )
        }

    def baselines(self, train: "Rows", rows: "Rows") -> dict[str, Scores]:
        """`majority`, which is O for every token, and `frequent_tag`: each word's most frequent tag."""
        return self.decoder.score_baselines(train, rows)
