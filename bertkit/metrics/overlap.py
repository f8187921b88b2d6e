"""A baseline of question answering that learns nothing: the sentence that looks most like the question."""

from collections.abc import Sequence

from sentencex import get_sentence_boundaries

from bertkit.data.ner.words import split_words
from bertkit.data.tokenization import replace_surrogates
from bertkit.data.unicode import detect_language


def predict_overlap(questions: Sequence[str], contexts: Sequence[str]) -> list[str]:
    """The sentence of each context with the most of its question's distinct words; the first of equals.

    Words are those of `words_of`, so characters where a script has no blanks, or has particles without one.

    Returns:
        [n] sentences as they stand in their contexts, without white space around; "" of one without any.
    """
    cut = {context: [(text, _words(text)) for text in _sentences(context)] for context in set(contexts)}
    return [
        _most(_words(question), cut[context]) for question, context in zip(questions, contexts, strict=True)
    ]


def _most(question: set[str], sentences: list[tuple[str, set[str]]]) -> str:
    return max(sentences, key=lambda sentence: len(question & sentence[1]), default=("", set()))[0]


def _words(text: str) -> set[str]:
    return {word for word in split_words(text.casefold()) if word[0].isalnum()}


def _sentences(text: str) -> list[str]:
    bounds = get_sentence_boundaries(detect_language(text), replace_surrogates(text))
    sentences = (text[bound["start_index"] : bound["end_index"]].strip() for bound in bounds)
    return [sentence for sentence in sentences if sentence]
