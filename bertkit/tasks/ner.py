"""`ner`: a tag for each token; entities are what is scored."""

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from bertkit.config import DATA, MODEL, RunConfig, setting
from bertkit.errors import UserError, listed
from bertkit.tasks.base import Outputs, Pipeline, Scores, Task
from bertkit.tasks.tagging import Tagging

if TYPE_CHECKING:
    from bertkit.data import features
    from bertkit.data.findings import Finding
    from bertkit.data.piece_counts import PieceCounts
    from bertkit.data.rows import Rows, Splits
    from bertkit.data.schemes import Scheme
    from bertkit.data.sources import Found
    from bertkit.data.split import Keys
    from bertkit.data.word_features import WordFeatures
    from bertkit.metrics.intervals import Scorer
    from bertkit.modeling.loading import ModelSource
    from bertkit.modeling.losses import Loss
    from bertkit.reporter import Reporter

FROZEN = {"learning_rate": 1e-3, "epochs": 10.0}
Features = Literal["last", "second-to-last", "sum-last-4", "concat-last-4", "sum-all", "embeddings"]


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
    features: Features | None = setting(
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
    words = True
    best = ("f1", 1)
    in_windows = True
    text_columns = ["tokens"]
    scheme: "Scheme"
    types: list[str]
    tagging: Tagging

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

    def columns(self, found: "Found") -> "Found":
        """Tokens and tags in one form, the scheme of the tags, and what is illegal in it."""
        from bertkit.data import tagged
        from bertkit.data.documents import placed
        from bertkit.data.tag_columns import column_names

        train = found.splits["train"]
        token, tag = column_names(train, self.config.token_column, self.config.tag_column)
        self.config = dataclasses.replace(self.config, token_column=token, tag_column=tag)
        rows, scheme, notes = tagged.read_split(train, "train", (token, tag), None)
        if scheme is None:
            raise UserError(f"{train.files[0]}: no tags in column {tag!r} to learn from")
        splits, notes = {"train": rows}, [*found.notes, *notes]
        for name in (
            name for name in found.splits if name != "train"
        ):  # read after it, whatever order the files have
            splits[name], _, more = tagged.read_split(found.splits[name], name, (token, tag), scheme)
            notes += more
        splits = {name: splits[name] for name in found.splits}
        if self.config.context == "document":
            splits = {name: placed(rows) for name, rows in splits.items()}
        self.scheme, self.types = scheme, tagged.types_in(splits["train"], tag)
        tags = [tag for some in splits["train"]["iob2"] for tag in some]
        self.outside = tags.count("O") / len(tags)
        return dataclasses.replace(found, splits=splits, notes=notes)

    def keys(self, rows: "Rows") -> "Keys":
        """The tokens; of sentences with entities and without the same share is set aside."""
        from bertkit.data.split import Keys

        tokens = [tuple(some) for some in rows["tokens"]]
        tags = rows.columns.get("iob2", [()] * len(rows))
        return Keys(tokens, tokens, [any(tag != "O" for tag in some) for some in tags])

    def check(self, splits: "Splits") -> None:
        """Tags are there in training and validation, and of types that training has."""
        from bertkit.data.tagged import check_types

        for name, rows in splits.items():
            if "iob2" in rows.columns:
                check_types(rows, self.types)
            elif name == "validation":
                raise UserError(
                    f"{rows.files[0]}: no tags in column {self.config.tag_column!r} to score with"
                )

    def labelled(self, rows: "Rows", split: str) -> tuple["Rows", list[str]]:
        """Sentences with tags of types that the run knows."""
        from bertkit.data import tagged
        from bertkit.data.documents import placed

        names = (self.config.token_column, self.config.tag_column)
        rows, scheme, notes = tagged.read_split(rows, split, names, self.scheme)
        if scheme is None:
            raise UserError(f"{rows.files[0]}: no tags in column {names[1]!r} to score with")
        tagged.check_types(rows, self.types)
        return (placed(rows) if self.config.context == "document" else rows), notes

    def readable(self, rows: "Rows") -> "Rows":
        """Every row has tokens, or a text; with `--context document` its place in its document, if told."""
        from bertkit.data import tagged
        from bertkit.data.documents import document_column, placed
        from bertkit.data.tag_columns import own_columns

        if tagged.are_in_tokens(rows):
            return rows
        token, _ = own_columns(rows, (self.config.token_column, self.config.tag_column))
        rows = tagged.in_tokens(rows, token, None)
        in_documents = self.config.context == "document" and document_column(rows)
        return placed(rows) if in_documents else rows

    def together(self, rows: "Rows") -> list[Any] | None:
        """Documents, where they are read around a sentence."""
        from bertkit.data.documents import document_column

        column = document_column(rows) if self.config.context == "document" else None
        return rows[column] if column else None

    @property
    def asked(self) -> dict[str, str]:
        """A text, of which words are made as in training on texts."""
        return {"text": self.config.token_column}

    def summary(self) -> str:
        """Tokens, tags, their scheme and types, and how many tokens are outside of all."""
        columns = [self.config.token_column, self.config.tag_column]
        tokens, tags = (f"column {name}" if name.isdecimal() else name for name in columns)
        return (
            f"{tokens} tagged by {tags} in {self.scheme}, types {listed(self.types)}; {self.outside:.1%} of "
            "the training tokens are O"
        )

    @property
    def gold_columns(self) -> set[str]:
        """The tags."""
        return {self.config.tag_column}

    @property
    def retold(self) -> set[str]:
        """Tokens, text and tags, and what stands around a sentence."""
        return {"tokens", "text", "tags", "iob2", "context"}

    # ---- looked at before training

    def texts(self, rows: "Rows") -> list[Sequence[str]]:
        """The sentences."""
        return [rows["text"]]

    def gold(self, rows: "Rows") -> list[Hashable] | None:
        """The tags."""
        return [tuple(tags) for tags in rows["iob2"]] if "iob2" in rows.columns else None

    def balance(self, rows: "Rows") -> dict[str, int]:
        """Entities by type."""
        from bertkit.data.tag_checks import entities

        return dict(entities(rows).most_common()) if "iob2" in rows.columns else {}

    def balance_findings(self, counts: "Mapping[str, Mapping[str, int]]") -> Iterator["Finding"]:
        """Types of entities that are rare, or that nothing is scored on."""
        from bertkit.data.tag_checks import rare

        return rare(counts)

    def findings(self, found: "Found", read: "Found", notes: Sequence[str]) -> Iterator["Finding"]:
        """Faults of the tags by kind, schemes that are mixed, types seen once, sentences without an end."""
        from bertkit.data import tag_checks
        from bertkit.data.tagged import WIDER

        for split, rows in read.splits.items():
            yield from tag_checks.without_tokens(split, found.splits[split], rows)
            yield from tag_checks.too_long(split, rows)
            if "tags" in rows.columns:
                yield from tag_checks.other_scheme(split, rows, self.scheme)
                yield from tag_checks.tag_faults(split, rows, self.scheme)
        yield from tag_checks.once(read.splits["train"])
        yield from super().findings(found, read, [note for note in notes if WIDER in note])

    def count_pieces(self, rows: "Rows", tokenizer: Any) -> "PieceCounts":
        """Of the sentence by itself."""
        from bertkit.data.piece_counts import PieceCounts

        return PieceCounts.of_located(rows["text"], tokenizer)

    def findings_in_pieces(self, split: str, rows: "Rows", tokenizer: Any) -> Iterator["Finding"]:
        """Tokens of which no piece is left."""
        from bertkit.data.tag_checks import without_pieces
        from bertkit.data.words import Sentences, encode_words

        sentences = Sentences.of(rows["tokens"], rows["text"])
        carrier = encode_words(sentences, tokenizer).carrier
        return without_pieces(split, rows, carrier, sentences.offsets)

    # ---- model

    def adopt(self, model_config: Any, source: "ModelSource") -> Any:
        """Take the model's own order of tags where they are ours; refuse where they are others."""
        from bertkit.data.tags import TagSet, iob2_names
        from bertkit.modeling.heads import TAGGER, TOKEN, match_labels, set_labels
        from bertkit.modeling.tagger import layers_of

        self._check_frozen()
        layers_of(model_config, self.config.features)  # has it so many?
        names, kind = iob2_names(self.types), TAGGER if self._is_tagger else TOKEN
        if not self.config.new_head:
            self.new_head, names = match_labels(model_config, names, source.name, kind)
        self.tagging = Tagging(TagSet(names), self.scheme)
        model_config.tag_scheme = dataclasses.asdict(self.scheme)
        return set_labels(model_config, names)

    def _check_frozen(self) -> None:
        """Raise where settings speak of layers that are not trained."""
        for flag, value in (("--freeze", self.config.freeze), ("--layer-decay", self.config.layer_decay)):
            if self.config.features and value:
                raise UserError(
                    f"{flag} {value}: --features freezes the whole encoder; leave one of them out"
                )

    def restore(self, model_config: Any) -> None:
        """The tags in the order of the model's outputs, and the scheme they are written in."""
        from bertkit.data.schemes import Scheme
        from bertkit.data.tags import TagSet

        tags = TagSet([model_config.id2label[number] for number in range(model_config.num_labels)])
        self.scheme, self.types = Scheme(**model_config.tag_scheme), tags.types
        self.tagging = Tagging(tags, self.scheme)
        self.new_head = False

    def prepare(self, rows: "Rows", tokenizer: Any) -> "WordFeatures":
        """Sentences in windows, each token decided once."""
        from bertkit.data.word_features import build_words

        return build_words(
            rows["tokens"], rows["text"], self.tagging.gold(rows), tokenizer, self.config.max_length,
            rows["context"] if self.config.context == "document" else None, cache=self.caches,
        )  # fmt: skip

    def advice(self) -> dict[str, Any]:
        """A head on frozen vectors starts from nothing: higher rates, more epochs."""
        return FROZEN if self.config.features else {}

    def model(self, model_config: Any, source: "ModelSource") -> Any:
        """`AutoModelForTokenClassification`, or a `Tagger` on some layers or with a BiLSTM."""
        from transformers import AutoModelForTokenClassification

        from bertkit.modeling.loading import load_model
        from bertkit.modeling.tagger import load_tagger

        if self._is_tagger:
            return load_tagger(source, model_config, self.config.features, self.config.head, self.new_head)
        return load_model(AutoModelForTokenClassification, source, model_config, self.new_head)

    def computed(self, model: Any, features: Any, collator: Any, reporter: "Reporter") -> "features.Features":
        """The vectors of a frozen encoder."""
        from bertkit.data.vectors import VectorFeatures, vectors_of

        if self.config.features is None:
            return features
        size = self.config.eval_batch_size
        return VectorFeatures(features, vectors_of(model, features, collator, size, reporter))

    def check_head(self, some_scored: Callable[[], Outputs]) -> None:
        """Refuse a head under whose names entities are of the wrong type and under others right."""
        from bertkit.modeling.heads import check_order

        types, predicted = self.tagging.types_in_entities(some_scored())
        names, model = [*self.types, "O"], str(self.config.model)
        if len(types):
            check_order(types, predicted, names, model, "tokens in entities")

    def loss(self, train: "features.Features") -> "Loss":
        """Cross-entropy over the tokens."""
        from bertkit.modeling.losses import CrossEntropy

        return CrossEntropy()

    # ---- results

    def metrics(self, outputs: Outputs) -> Scores:
        """`precision`, `recall` and `f1` of entities, `accuracy` of tokens."""
        from bertkit.metrics.entities import scores

        return scores(*self.tagging.counts(outputs))

    def scorer(self, outputs: Outputs) -> "Scorer":
        """By sentences, since the tokens of one are no independent draws."""
        from bertkit.metrics.entities import scores
        from bertkit.metrics.intervals import Scorer

        entities, tokens = self.tagging.counts(outputs)
        entities = entities.sum(1)
        return Scorer(lambda rows: scores(entities[rows], tokens[rows]), len(tokens))

    def details(self, outputs: Outputs) -> dict[str, Scores]:
        """The scores of each type."""
        from bertkit.metrics.entities import per_type

        return per_type(self.tagging.counts(outputs)[0], self.tagging.tags)

    def decode(self, outputs: Outputs) -> Iterator[dict[str, Any]]:
        """`tokens`, `gold` and `predicted` tags in the data's scheme, and `entities` by characters."""
        return self.tagging.records(outputs)

    def all_scores(self, outputs: Outputs) -> Iterator[dict[str, Any]]:
        """The probability of each token's predicted tag."""
        return ({"probabilities": some} for some in self.tagging.probabilities(outputs))

    def files(self, outputs: Outputs) -> dict[str, Iterator[str]]:
        """`predictions.conll`: token, gold tag (where there is one), predicted tag."""
        from bertkit.data.conll import write_columns

        gold, predicted, _ = self.tagging.written(outputs)
        return {
            "predictions.conll": write_columns(
                [outputs.rows["tokens"], *([] if gold is None else [gold]), predicted]
            )
        }

    def baselines(self, train: "Rows", rows: "Rows") -> dict[str, Scores]:
        """`majority`, which is O for every token, and `frequent_tag`: each word's most frequent tag."""
        return self.tagging.baselines(train, rows)
