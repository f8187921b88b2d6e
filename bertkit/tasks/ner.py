"""`ner`: a tag for each token; entities are what is scored."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from bertkit.config import DATA, MODEL, RunConfig, setting
from bertkit.errors import UserError, listed
from bertkit.tasks.base import Outputs, Pipeline, Scores, Task

if TYPE_CHECKING:
    import numpy as np

    from bertkit.data import features
    from bertkit.data.rows import Rows, Splits
    from bertkit.data.schemes import Scheme
    from bertkit.data.sources import Found
    from bertkit.data.split import Keys
    from bertkit.data.tags import TagSet
    from bertkit.data.word_features import WordFeatures
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
    head: Literal["linear", "bilstm"] = setting(
        "linear", "What decides on the vectors: an output layer alone, or behind a two-layer BiLSTM.", MODEL
    )


class Ner(Task):
    """The first piece of a token carries its tag; the best legal sequence of tags is predicted.

    Devlin et al. 2018, 5.3. Inside, tags are IOB2 whatever the data's scheme, and entities are what
    conlleval takes for them; predictions are written back in the scheme of the data.

    Attributes:
        scheme: of the training rows, known after `columns`.
        tags: the model's outputs, known after `adopt`.
    """

    name = "ner"
    help = "Fine-tune on named entities, or any tags of tokens."
    Config = NerConfig
    words = True
    best = ("f1", 1)
    in_windows = True
    text_columns = ["tokens"]
    scheme: "Scheme"
    tags: "TagSet"

    @property
    def pipeline(self) -> Pipeline | None:  # type: ignore[override]
        """Of the stock model; others are bertkit's own."""
        stock = Pipeline("token-classification", {"aggregation_strategy": "first"}, {})
        return None if self._is_tagger else stock

    @property
    def _is_tagger(self) -> bool:
        """Whether the model is another than the stock one: on several layers, or with a BiLSTM."""
        return self.config.features is not None or self.config.head == "bilstm"

    # ---- rows

    def columns(self, found: "Found") -> "Found":
        """Tokens and tags in one form, the scheme of the tags, and what is illegal in it."""
        from bertkit.data import tagged

        train = found.splits["train"]
        token, tag = tagged.column_names(train, self.config.token_column, self.config.tag_column)
        self.config = dataclasses.replace(self.config, token_column=token, tag_column=tag)
        splits, notes = {}, list(found.notes)
        scheme: Scheme | None = None
        for name, rows in found.splits.items():  # the training rows first: their scheme is the usual one
            splits[name], kind, more = tagged.read_split(rows, name, (token, tag), scheme)
            scheme = scheme or kind
            notes += more
        if scheme is None:
            raise UserError(f"{train.files[0]}: no tags in column {tag!r} to learn from")
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

    def readable(self, rows: "Rows") -> "Rows":
        """Every row has tokens, or a text; with `--context document` its place in its document."""
        from bertkit.data import tagged

        if "tokens" not in rows.columns or "text" not in rows.columns:
            rows = tagged.in_tokens(rows, self.config.token_column, None)
        return tagged.placed(rows) if self.config.context == "document" else rows

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
        self.tags = TagSet(names)
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

        self.tags = TagSet([model_config.id2label[number] for number in range(model_config.num_labels)])
        self.scheme, self.types = Scheme(**model_config.tag_scheme), self.tags.types
        self.new_head = False

    def prepare(self, rows: "Rows", tokenizer: Any) -> "WordFeatures":
        """Sentences in windows, each token decided once."""
        from bertkit.data.word_features import build_words

        return build_words(
            rows["tokens"], rows["text"], self._gold(rows), tokenizer, self.config.max_length,
            rows.columns.get("context"), cache=not self.config.dry_run,
        )  # fmt: skip

    def _gold(self, rows: "Rows") -> "np.ndarray | None":
        """[tokens] int; None of a split without tags."""
        return self.tags.numbers(rows["iob2"]) if "iob2" in rows.columns else None

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

    def computed(
        self, model: Any, features: "features.Features", collator: Any, reporter: "Reporter"
    ) -> "features.Features":
        """The vectors of a frozen encoder."""
        from bertkit.data.vectors import VectorFeatures, vectors_of

        if self.config.features is None:
            return features
        size = self.config.eval_batch_size
        return VectorFeatures(features, vectors_of(model, features, collator, size, reporter))

    def check_head(self, some_scored: Callable[[], Outputs]) -> None:
        """Refuse a head under whose names entities are of the wrong type and under others right."""
        from bertkit.modeling.heads import check_order

        outputs = some_scored()
        gold = self._gold(outputs.rows)
        assert gold is not None
        inside = gold != self.tags.outside
        if inside.any():
            # By type: a head need not tell B from I for what it calls things to be seen.
            types = self.tags.type_of % (len(self.types) + 1)  # O, which is -1, comes last
            predicted = types[self._emissions(outputs).argmax(-1)[inside]]
            names, model = [*self.types, "O"], str(self.config.model)
            check_order(types[gold[inside]], predicted, names, model, "tokens in entities")

    def loss(self, train: "features.Features") -> "Loss":
        """Cross-entropy over the tokens."""
        from bertkit.modeling.losses import CrossEntropy

        return CrossEntropy()

    # ---- results

    def _emissions(self, outputs: Outputs) -> "np.ndarray":
        from bertkit.data.emissions import emissions

        return emissions(outputs.logits, outputs.features, self.tags)

    def _scheme(self, rows: "Rows") -> "Scheme":
        """The scheme of a split: the training rows', where its tags do not speak against it."""
        from bertkit.data.schemes import detect

        return detect(rows["tags"], self.scheme) if "tags" in rows.columns else self.scheme

    def _predicted(self, outputs: Outputs) -> "np.ndarray":
        """[tokens] int: the best legal sequence of each sentence, of those that its scheme can write."""
        from bertkit.modeling.viterbi import viterbi

        legal = self.tags.transitions(adjacent=self._scheme(outputs.rows).name != "IO")
        return viterbi(self._emissions(outputs), outputs.features.tokens, *legal)

    def _counts(self, outputs: Outputs) -> tuple["np.ndarray", "np.ndarray"]:
        from bertkit.metrics.entities import sentence_counts

        gold = self._gold(outputs.rows)
        assert gold is not None
        return sentence_counts(gold, self._predicted(outputs), outputs.features.tokens, self.tags)

    def metrics(self, outputs: Outputs) -> Scores:
        """`precision`, `recall` and `f1` of entities, `accuracy` of tokens."""
        from bertkit.metrics.entities import scores

        return scores(*self._counts(outputs))

    def intervals(self, outputs: Outputs) -> dict[str, list[float]]:
        """Bootstrap over the sentences, since the tokens of one are no independent draws."""
        from bertkit.metrics.entities import scores
        from bertkit.metrics.intervals import bootstrap

        entities, tokens = self._counts(outputs)
        entities = entities.sum(1)
        return bootstrap(lambda rows: scores(entities[rows], tokens[rows]), len(tokens), self.config.seed)

    def details(self, outputs: Outputs) -> dict[str, Scores]:
        """The scores of each type."""
        from bertkit.metrics.entities import per_type

        return per_type(self._counts(outputs)[0], self.tags)

    def decode(self, outputs: Outputs) -> Iterator[dict[str, Any]]:
        """`tokens`, `gold` and `predicted` tags in the data's scheme, and `entities` by characters."""
        from bertkit.data.spans import entities_in

        gold, predicted, iob2 = self._written(outputs)
        sure = self._probabilities(outputs)
        for index, (tokens, text) in enumerate(
            zip(outputs.rows["tokens"], outputs.rows["text"], strict=True)
        ):
            yield {
                "tokens": tokens,
                "gold": gold[index] if gold else None,
                "predicted": predicted[index],
                "text": text,
                "entities": entities_in(iob2[index], tokens, text, sure[index]),
            }

    def _probabilities(self, outputs: Outputs) -> list[list[float]]:
        """Of each token's predicted tag."""
        import numpy as np

        predicted, tokens = self._predicted(outputs), outputs.features.tokens
        found = np.exp(self._emissions(outputs)[np.arange(len(predicted)), predicted])
        return [some.tolist() for some in np.split(found, tokens[1:-1])]

    def _written(self, outputs: Outputs) -> tuple[Any, list[list[str]], list[list[str]]]:
        """Gold tags as they came, predicted ones in the same scheme, and in IOB2."""
        from bertkit.data.schemes import from_iob2
        from bertkit.data.tags import as_sentences

        iob2 = as_sentences(self.tags.names_of(self._predicted(outputs)), outputs.features.tokens)
        return outputs.rows.columns.get("tags"), from_iob2(iob2, self._scheme(outputs.rows)), iob2

    def files(self, outputs: Outputs) -> dict[str, Iterator[str]]:
        """`predictions.conll`: token, gold tag (where there is one), predicted tag."""
        from bertkit.data.conll import write_columns  # x

        gold, predicted, _ = self._written(outputs)
        columns = [outputs.rows["tokens"], *([gold] if gold else []), predicted]
        return {"predictions.conll": write_columns(columns)}

    def baselines(self, train: "Rows", rows: "Rows") -> dict[str, Scores]:
        """`majority`, which is O for every token, and `frequent_tag`: each word's most frequent tag."""
        import numpy as np

        from bertkit.data.tags import offsets_of
        from bertkit.metrics.baselines import frequent_tag
        from bertkit.metrics.entities import scores, sentence_counts

        known, gold, outside = self._gold(train), self._gold(rows), self.tags.outside
        assert known is not None
        assert gold is not None
        words = [[token for tokens in part["tokens"] for token in tokens] for part in (train, rows)]
        answers = {
            "majority": np.full(len(gold), outside),
            "frequent_tag": frequent_tag(words[0], known, words[1], outside),
        }
        tokens = offsets_of(rows["tokens"])
        return {
            name: scores(*sentence_counts(gold, tags, tokens, self.tags)) for name, tags in answers.items()
        }
