"""Predicted tags and entities of `ner`: decoding, scores, records and files."""

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from bertkit.tasks.base import Scores
from bertkit.tasks.evaluation import Evaluation, Outputs, ScoreDetail

if TYPE_CHECKING:
    import numpy as np

    from bertkit.data.ner.schemes import Scheme
    from bertkit.data.ner.tags import TagSet
    from bertkit.data.rows import Rows
    from bertkit.metrics.significance import Scorer


class NerEvaluation(Evaluation):
    """The best legal sequence of tags of each sentence.

    Attributes:
        tags: the tags in the order of the model's outputs.
        scheme: the tagging scheme of the training rows.
    """

    def __init__(self, outputs: Outputs, tags: "TagSet", scheme: "Scheme") -> None:
        super().__init__(outputs)
        self.tags = tags
        self.scheme = scheme

    @cached_property
    def gold(self) -> "np.ndarray":
        """The gold tag ids in IOB2, [words]."""
        return self.tags.encode(self.outputs.rows["iob2"])

    @cached_property
    def split_scheme(self) -> "Scheme":
        """The scheme of this split's tags: the training scheme unless the tags contradict it."""
        from bertkit.data.ner.schemes import detect_scheme

        rows = self.outputs.rows
        return detect_scheme(rows["tags"], self.scheme) if "tags" in rows.columns else self.scheme

    @cached_property
    def _decoded(self) -> "tuple[np.ndarray, np.ndarray]":
        """The predicted tag ids, [words], and their probabilities, [words]."""
        import numpy as np

        from bertkit.data.ner.decoding import viterbi_decode

        emissions = self._emissions()
        # IO tags cannot separate adjacent entities of one type.
        transitions = self.tags.build_transitions(allow_adjacent=self.split_scheme.name != "IO")
        predicted = viterbi_decode(emissions, self.outputs.features.word_offsets, *transitions)
        return predicted, np.exp(emissions[np.arange(len(predicted)), predicted])

    @property
    def predicted(self) -> "np.ndarray":
        """The predicted tag ids in IOB2, [words]."""
        return self._decoded[0]

    def _emissions(self) -> "np.ndarray":
        """Return log probabilities of tags, [words, tags]; too large to keep."""
        from bertkit.data.ner.decoding import compute_emissions

        return compute_emissions(self.outputs.logits, self.outputs.features, self.tags)

    @cached_property
    def _probabilities(self) -> list[list[float]]:
        """The probability of each word's predicted tag, by sentence."""
        import numpy as np

        inner_offsets = self.outputs.features.word_offsets[1:-1]
        return [sentence.tolist() for sentence in np.split(self._decoded[1], inner_offsets)]

    @cached_property
    def _iob2(self) -> list[list[str]]:
        """The predicted tags in IOB2, by sentence."""
        from bertkit.data.ner.tags import split_by_offsets

        return split_by_offsets(self.tags.decode(self.predicted), self.outputs.features.word_offsets)

    @cached_property
    def _written_tags(self) -> list[list[str]]:
        """The predicted tags in the scheme of the split, by sentence."""
        from bertkit.data.ner.schemes import from_iob2

        return from_iob2(self._iob2, self.split_scheme)

    @cached_property
    def _counts(self) -> "tuple[np.ndarray, np.ndarray]":
        """Counts of entities and of words by sentence; see `count_by_sentence`."""
        from bertkit.metrics.entities import count_by_sentence

        return count_by_sentence(self.gold, self.predicted, self.outputs.features.word_offsets, self.tags)

    def compare_entity_types(self) -> "tuple[np.ndarray, np.ndarray]":
        """Return the gold and the likeliest type of each word in an entity; O comes after the types.

        Types are compared instead of tags, since a head may be right about types and confuse B and I.
        """
        is_inside = self.gold != self.tags.outside_id
        types = self.tags.type_ids % (len(self.tags.types) + 1)  # the type id of O is -1
        return types[self.gold[is_inside]], types[self._emissions()[is_inside].argmax(-1)]

    # ---- scores

    def compute_scores(self) -> Scores:
        """Return `precision`, `recall` and `f1` of entities, and `accuracy` of words."""
        from bertkit.metrics.entities import score_sentences

        return score_sentences(*self._counts)

    def scorer(self) -> "Scorer":
        """Return a scorer of sentences, since the words of one sentence are not independent."""
        from bertkit.metrics.entities import score_sentences
        from bertkit.metrics.significance import Scorer

        entities, words = self._counts
        entities = entities.sum(1)
        return Scorer(lambda rows: score_sentences(entities[rows], words[rows]), len(words))

    def details(self) -> dict[str, Scores]:
        """Return the scores of each entity type."""
        from bertkit.metrics.entities import score_types

        return score_types(self._counts[0], self.tags)

    # ---- records

    def records(self, scores: ScoreDetail = "default") -> Iterator[dict[str, Any]]:
        """Yield `tokens`, `gold` and `predicted` tags, `text`, and `entities` by characters.

        All scores add `probabilities`, those of each word's predicted tag.
        """
        from bertkit.data.ner.words import extract_entities

        rows = self.outputs.rows
        gold = rows.columns.get("tags")
        for index, (words, text) in enumerate(zip(rows["tokens"], rows["text"], strict=True)):
            probabilities = self._probabilities[index]
            record = {
                "tokens": words,
                "gold": None if gold is None else gold[index],
                "predicted": self._written_tags[index],
                "text": text,
                "entities": extract_entities(self._iob2[index], words, text, probabilities),
            }
            yield record | {"probabilities": probabilities} if scores == "all" else record

    def files(self) -> dict[str, Iterator[str]]:
        """Return `predictions.conll`: word, gold tag (if there is one), predicted tag."""
        from bertkit.data.readers.conll import format_conll

        rows = self.outputs.rows
        gold = [rows["tags"]] if "tags" in rows.columns else []
        return {"predictions.conll": format_conll([rows["tokens"], *gold, self._written_tags])}


def score_baselines(train: "Rows", rows: "Rows", tags: "TagSet") -> dict[str, Scores]:
    """Score O for every word (`majority`), and each word's most frequent tag (`frequent_tag`)."""
    import numpy as np

    from bertkit.data.ner.tags import compute_offsets
    from bertkit.metrics.baselines import predict_frequent_tag
    from bertkit.metrics.entities import count_by_sentence, score_sentences

    train_tags, gold = tags.encode(train["iob2"]), tags.encode(rows["iob2"])
    train_words, words = (
        [word for sentence in part["tokens"] for word in sentence] for part in (train, rows)
    )
    predictions = {
        "majority": np.full(len(gold), tags.outside_id),
        "frequent_tag": predict_frequent_tag(train_words, train_tags, words, tags.outside_id),
    }
    offsets = compute_offsets(rows["tokens"])
    return {
        name: score_sentences(*count_by_sentence(gold, predicted, offsets, tags))
        for name, predicted in predictions.items()
    }
