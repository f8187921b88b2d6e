"""From logits of pieces to tags of tokens, as `ner` scores, shows and writes them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bertkit.tasks.base import Outputs, Scores

if TYPE_CHECKING:
    import numpy as np

    from bertkit.data.ner.schemes import Scheme
    from bertkit.data.ner.tags import TagSet
    from bertkit.data.rows import Rows


@dataclass(frozen=True)
class TagDecoder:
    """The tags of a model's outputs, and the scheme in which the training rows write them."""

    tags: "TagSet"
    scheme: "Scheme"

    def encode_gold(self, rows: "Rows") -> "np.ndarray | None":
        """[tokens] int; None of a split without tags."""
        return self.tags.encode(rows["iob2"]) if "iob2" in rows.columns else None

    def predict_tags(self, outputs: Outputs) -> "np.ndarray":
        """[tokens] int: the best legal sequence of each sentence, of those that its scheme can write."""
        from bertkit.data.ner.decoding import viterbi_decode

        legal = self.tags.build_transitions(allow_adjacent=self._scheme(outputs.rows).name != "IO")
        return viterbi_decode(self._emissions(outputs), outputs.features.word_offsets, *legal)

    def count_entities(self, outputs: Outputs) -> tuple["np.ndarray", "np.ndarray"]:
        """Of each sentence, see `bertkit.metrics.entities.sentence_counts`."""
        from bertkit.metrics.entities import count_by_sentence

        gold = self.encode_gold(outputs.rows)
        assert gold is not None
        return count_by_sentence(gold, self.predict_tags(outputs), outputs.features.word_offsets, self.tags)

    def compare_entity_types(self, outputs: Outputs) -> tuple["np.ndarray", "np.ndarray"]:
        """Gold and likeliest type of each token in an entity; O comes behind the types.

        By type, since a head need not tell B from I for what it calls things to be seen.
        """
        gold = self.encode_gold(outputs.rows)
        assert gold is not None
        inside = gold != self.tags.outside_id
        types = self.tags.type_ids % (len(self.tags.types) + 1)  # of O it is -1
        return types[gold[inside]], types[self._emissions(outputs)[inside].argmax(-1)]

    def iter_records(self, outputs: Outputs) -> Iterator[dict[str, Any]]:
        """A readable prediction of each sentence; see docs/ner.md for its keys."""
        from bertkit.data.ner.words import extract_entities

        gold, predicted, iob2 = self.restore_schemes(outputs)
        sure, rows = self.compute_probabilities(outputs), outputs.rows
        for index, (tokens, text) in enumerate(zip(rows["tokens"], rows["text"], strict=True)):
            yield {
                "tokens": tokens,
                "gold": None if gold is None else gold[index],
                "predicted": predicted[index],
                "text": text,
                "entities": extract_entities(iob2[index], tokens, text, sure[index]),
            }

    def restore_schemes(
        self, outputs: Outputs
    ) -> tuple[list[list[str]] | None, list[list[str]], list[list[str]]]:
        """Gold tags as they came, predicted ones in the same scheme, and in IOB2."""
        from bertkit.data.ner.schemes import from_iob2
        from bertkit.data.ner.tags import split_by_offsets

        iob2 = split_by_offsets(self.tags.decode(self.predict_tags(outputs)), outputs.features.word_offsets)
        return outputs.rows.columns.get("tags"), from_iob2(iob2, self._scheme(outputs.rows)), iob2

    def score_baselines(self, train: "Rows", rows: "Rows") -> dict[str, Scores]:
        """O for every token, and each word's most frequent tag in training."""
        import numpy as np

        from bertkit.data.ner.tags import compute_offsets
        from bertkit.metrics.baselines import predict_frequent_tag
        from bertkit.metrics.entities import count_by_sentence, score_sentences

        known, gold, outside = self.encode_gold(train), self.encode_gold(rows), self.tags.outside_id
        assert known is not None
        assert gold is not None
        words = [[token for tokens in part["tokens"] for token in tokens] for part in (train, rows)]
        answers = {
            "majority": np.full(len(gold), outside),
            "frequent_tag": predict_frequent_tag(words[0], known, words[1], outside),
        }
        tokens = compute_offsets(rows["tokens"])
        return {
            name: score_sentences(*count_by_sentence(gold, tags, tokens, self.tags))
            for name, tags in answers.items()
        }

    def _emissions(self, outputs: Outputs) -> "np.ndarray":
        from bertkit.data.ner.decoding import compute_emissions

        return compute_emissions(outputs.logits, outputs.features, self.tags)

    def compute_probabilities(self, outputs: Outputs) -> list[list[float]]:
        """Of each token's predicted tag."""
        import numpy as np

        predicted, tokens = self.predict_tags(outputs), outputs.features.word_offsets
        found = np.exp(self._emissions(outputs)[np.arange(len(predicted)), predicted])
        return [some.tolist() for some in np.split(found, tokens[1:-1])]

    def _scheme(self, rows: "Rows") -> "Scheme":
        """The scheme of a split: the training rows', where its tags do not speak against it."""
        from bertkit.data.ner.schemes import detect_scheme

        return detect_scheme(rows["tags"], self.scheme) if "tags" in rows.columns else self.scheme
