"""What needs no encoder: a constant answer, a bag of words with a linear model, each word's usual tag.

All are fitted on the training rows of the run and predict its evaluation rows, so their scores stand
on the very same split as the model's.
"""

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

import numpy as np

TextColumns = Sequence[Sequence[str]]  # one or two columns of n texts
WORD_PATTERN = (
    r"(?u)\b\w+\b"  # also of one letter, and Korean, which the default pattern drops or keeps by luck
)
MAX_TFIDF_ROWS = 50_000  # more training rows than this are thinned: minutes of fitting for nothing


def predict_majority(labels: np.ndarray, size: int) -> np.ndarray:
    """The most frequent label (multi-label: each its own; regression: the mean), [size, ...]."""
    if labels.dtype.kind == "f":
        constant: Any = labels.mean()
    elif labels.ndim == 2:
        constant = (labels.mean(0) > 0.5).astype(labels.dtype)
    else:
        constant = np.bincount(labels).argmax()
    return np.broadcast_to(constant, (size, *np.shape(constant)))


def predict_tfidf(
    train: TextColumns, labels: np.ndarray, others: Sequence[TextColumns], seed: int = 0
) -> list[np.ndarray]:
    """TF-IDF of words and word pairs, then logistic regression (regression: ridge).

    Args:
        train: the training texts.
        labels: [n] int, [n, classes] int or [n] float.
        others: further splits to predict.

    Returns:
        For each of `others` its predictions, of the shape of the labels.
    """
    model = _fitted(train, labels, seed)
    if model is None:
        return [predict_majority(labels, len(texts[0])) for texts in others]
    return [np.asarray(model(texts, "predict")) for texts in others]


def predict_ending_only(
    train: Sequence[Sequence[str]], right: np.ndarray, others: Sequence[Sequence[str]], seed: int = 0
) -> np.ndarray:
    """Which ending looks right by its own words: TF-IDF and logistic regression over single endings.

    Args:
        train: [n] the endings of each training row.
        right: [n] int, the number of the right one.
        others: [m] the endings of each row to predict.

    Returns:
        [m] int, the number of the ending that looks most right.
    """
    is_right = np.concatenate(
        [np.arange(len(some)) == number for some, number in zip(train, right, strict=True)]
    )
    model = _fitted([[ending for some in train for ending in some]], is_right.astype(np.int64), seed)
    if model is None:
        return predict_majority(right, len(others))
    scores = model([[ending for some in others for ending in some]], "decision_function")
    parts = np.split(scores, np.cumsum([len(some) for some in others])[:-1])
    return np.array([part.argmax() for part in parts])


def predict_frequent_tag(
    train_words: Sequence[str], train_tags: np.ndarray, words: Sequence[str], outside: int
) -> np.ndarray:
    """Each word's most frequent tag in training, the lowest of equals; `outside` for words it lacks.

    Args:
        train_words: [total] the words of all training sentences.
        train_tags: [total] int, their tags.
        words: [m] the words to tag.

    Returns:
        [m] int.
    """
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys(train_words))}
    numbers = np.fromiter(map(vocabulary.__getitem__, train_words), np.int64, len(train_words))
    size = int(train_tags.max(initial=0)) + 1
    cells, counts = np.unique(numbers * size + train_tags, return_counts=True)
    word, tag = np.divmod(cells, size)  # both rise, so that sorting keeps the lowest of equal tags first
    order = np.lexsort((-counts, word))
    _, first = np.unique(word, return_index=True)
    answers = np.append(tag[order[first]], outside)  # the last is for the -1 of an unseen word
    return answers[np.fromiter(map(vocabulary.get, words, repeat(-1)), np.int64, len(words))]


def _fitted(
    train: TextColumns, labels: np.ndarray, seed: int
) -> Callable[[TextColumns, str], np.ndarray] | None:
    """A linear model over words, asked by texts and method; None where no text has words."""
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import TfidfVectorizer

    chosen = np.sort(np.random.default_rng(seed).permutation(len(labels))[:MAX_TFIDF_ROWS])
    columns = [[column[i] for i in chosen] for column in train]
    words = [
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=WORD_PATTERN, min_df=1)
        for _ in columns
    ]
    try:
        vectors = [v.fit_transform(column) for v, column in zip(words, columns, strict=True)]
    except ValueError:  # scikit-learn's "empty vocabulary": no words in any text
        return None
    model = _linear_model(labels[chosen]).fit(hstack(vectors), labels[chosen])

    def ask(texts: TextColumns, method: str) -> np.ndarray:
        seen = [v.transform(column) for v, column in zip(words, texts, strict=True)]
        return getattr(model, method)(hstack(seen))

    return ask


def _linear_model(labels: np.ndarray) -> Any:
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.multiclass import OneVsRestClassifier

    if labels.dtype.kind == "f":
        return Ridge()
    model = LogisticRegression(C=10.0, max_iter=1000)
    return OneVsRestClassifier(model) if labels.ndim == 2 else model
