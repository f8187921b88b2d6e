"""From logits of pieces to tags of tokens, as `ner` scores, shows and writes them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bertkit.tasks.base import Outputs, Scores

if TYPE_CHECKING:
    import numpy as np

    from bertkit.data.rows import Rows
    from bertkit.data.schemes import Scheme
    from bertkit.data.tags import TagSet


@dataclass(frozen=True)
class Tagging:
    """The tags of a model's outputs, and the scheme in which the training rows write them."""

    tags: "TagSet"
    scheme: "Scheme"

    def gold(self, rows: "Rows") -> "np.ndarray | None":
        """[tokens] int; None of a split without tags."""
        return self.tags.numbers(rows["iob2"]) if "iob2" in rows.columns else None

    def predicted(self, outputs: Outputs) -> "np.ndarray":
        """[tokens] int: the best legal sequence of each sentence, of those that its scheme can write."""
        from bertkit.modeling.viterbi import viterbi

        legal = self.tags.transitions(adjacent=self._scheme(outputs.rows).name != "IO")
        return viterbi(self._emissions(outputs), outputs.features.tokens, *legal)

    def counts(self, outputs: Outputs) -> tuple["np.ndarray", "np.ndarray"]:
        """Of each sentence, see `bertkit.metrics.entities.sentence_counts`."""
        from bertkit.metrics.entities import sentence_counts

        gold = self.gold(outputs.rows)
        assert gold is not None
        return sentence_counts(gold, self.predicted(outputs), outputs.features.tokens, self.tags)

    def types_in_entities(self, outputs: Outputs) -> tuple["np.ndarray", "np.ndarray"]:
        """Gold and likeliest type of each token in an entity; O comes behind the types.

        By type, since a head need not tell B from I for what it calls things to be seen.
        """
        gold = self.gold(outputs.rows)
        assert gold is not None
        inside = gold != self.tags.outside
        types = self.tags.type_of % (len(self.tags.types) + 1)  # of O it is -1
        return types[gold[inside]], types[self._emissions(outputs)[inside].argmax(-1)]

    def records(self, outputs: Outputs) -> Iterator[dict[str, Any]]:
        """A readable prediction of each sentence; see docs/ner.md for its keys."""
        from bertkit.data.spans import entities_in

        gold, predicted, iob2 = self.written(outputs)
        sure, rows = self.probabilities(outputs), outputs.rows
        for index, (tokens, text) in enumerate(zip(rows["tokens"], rows["text"], strict=True)):
            yield {
                "tokens": tokens,
                "gold": None if gold is None else gold[index],
                "predicted": predicted[index],
                "text": text,
                "entities": entities_in(iob2[index], tokens, text, sure[index]),
            }

    def written(self, outputs: Outputs) -> tuple[list[list[str]] | None, list[list[str]], list[list[str]]]:
        """Gold tags as they came, predicted ones in the same scheme, and in IOB2."""
        from bertkit.data.schemes import from_iob2
        from bertkit.data.tags import as_sentences

        iob2 = as_sentences(self.tags.names_of(self.predicted(outputs)), outputs.features.tokens)
        return outputs.rows.columns.get("tags"), from_iob2(iob2, self._scheme(outputs.rows)), iob2

    def baselines(self, train: "Rows", rows: "Rows") -> dict[str, Scores]:
        """O for every token, and each word's most frequent tag in training."""
        import numpy as np

        from bertkit.data.tags import offsets_of
        from bertkit.metrics.baselines import frequent_tag
        from bertkit.metrics.entities import scores, sentence_counts

        known, gold, outside = self.gold(train), self.gold(rows), self.tags.outside
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

    def _emissions(self, outputs: Outputs) -> "np.ndarray":
        from bertkit.data.emissions import emissions

        return emissions(outputs.logits, outputs.features, self.tags)

    def probabilities(self, outputs: Outputs) -> list[list[float]]:
        """Of each token's predicted tag."""
        import numpy as np

        predicted, tokens = self.predicted(outputs), outputs.features.tokens
        found = np.exp(self._emissions(outputs)[np.arange(len(predicted)), predicted])
        return [some.tolist() for some in np.split(found, tokens[1:-1])]

    def _scheme(self, rows: "Rows") -> "Scheme":
        """The scheme of a split: the training rows', where its tags do not speak against it."""
        from bertkit.data.schemes import detect

        return detect(rows["tags"], self.scheme) if "tags" in rows.columns else self.scheme
