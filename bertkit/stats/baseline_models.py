"""Baselines without an encoder: majority label, TF-IDF, most frequent tag, and word overlap.

A baseline is fitted on the training rows of a run and predicts its evaluation rows. Its scores are therefore
comparable with those of the model.
"""

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

import numpy as np
from sentencex import get_sentence_boundaries

from bertkit.data.language import detect_language, split_words
from bertkit.data.table import as_column, iter_chunks
from bertkit.data.weights_and_soft_labels import TrainingLabels
from bertkit.utils.text import replace_surrogates

TextColumns = Sequence[Sequence[str]]  # one or two columns of n texts
# Unlike scikit-learn's default pattern, this one keeps words of one letter, which are common in Korean.
WORD_PATTERN = r"(?u)\b\w+\b"
MAX_TFIDF_ROWS = 50_000  # larger training sets are sampled; more rows take minutes and do not improve scores
TFIDF_BASELINES = ("tfidf", "hypothesis_only", "ending_only")
PREDICTED_ROWS = 10_000  # rows whose TF-IDF vectors are in memory at a time


def predict_majority(train: TrainingLabels, size: int) -> np.ndarray:
    """Predict the most frequent label of the training rows for `size` rows, or the mean of numbers.

    Of label sets, a label is predicted if more than half of the rows have it.
    """
    labels = train.labels
    if labels.dtype.kind == "f":
        constant: Any = np.average(labels, weights=train.weights)
    elif labels.ndim == 2:
        total = len(labels) if train.weights is None else train.weights.sum(dtype=np.float64)
        constant = (train.sum_by_class(labels.shape[1]) > total / 2).astype(labels.dtype)
    else:
        num_classes = int(labels.max()) + 1 if train.targets is None else train.targets.shape[1]
        constant = train.sum_by_class(num_classes).argmax()
    return np.broadcast_to(constant, (size, *np.shape(constant)))


def predict_tfidf(
    train: TextColumns, labels: TrainingLabels, texts: TextColumns, seed: int = 0
) -> np.ndarray:
    """Predict rows with a linear model on the TF-IDF vectors of words and word pairs.

    The model is a logistic regression, or a ridge regression if the labels are numbers.
    """
    rows = sample_tfidf_rows(len(labels.labels), seed)
    model = _fit_tfidf_model([as_column(column).take(rows) for column in train], labels.select(rows))
    if model is None:
        return predict_majority(labels, len(texts[0]))
    chunks = zip(*(iter_chunks(column, PREDICTED_ROWS) for column in texts), strict=True)
    return np.concatenate([model(chunk, "predict") for chunk in chunks])


def sample_tfidf_rows(num_rows: int, seed: int) -> np.ndarray:
    """Return the indices of the training rows that TF-IDF baselines are fitted on, ascending."""
    return np.sort(np.random.default_rng(seed).permutation(num_rows)[:MAX_TFIDF_ROWS])


def predict_ending_only(
    train: Sequence[Sequence[str]], correct: TrainingLabels, others: Sequence[Sequence[str]], seed: int = 0
) -> np.ndarray:
    """Return [m] the ending that a logistic regression on TF-IDF vectors chooses from the endings alone.

    `train` are the [n] endings of each training row, `correct` the indices of the correct ones, and `others`
    the [m] endings of each row to predict.
    """
    sampled = sample_tfidf_rows(len(train), seed)
    labels = correct.select(sampled)
    sampled_endings = as_column(train).take(sampled)
    is_correct = np.concatenate([
        np.arange(len(endings)) == index
        for endings, index in zip(sampled_endings, labels.labels, strict=True)
    ])  # fmt: skip
    train_endings = [ending for endings in sampled_endings for ending in endings]
    weights = labels.weights
    if weights is not None:
        weights = np.repeat(weights, list(map(len, sampled_endings)))
    model = _fit_tfidf_model([train_endings], TrainingLabels(is_correct.astype(np.int64), weights))
    if model is None:
        return predict_majority(correct, len(others))
    scores = model([[ending for endings in others for ending in endings]], "decision_function")
    scores_by_row = np.split(scores, np.cumsum([len(endings) for endings in others])[:-1])
    return np.array([row.argmax() for row in scores_by_row])


def _fit_tfidf_model(
    train: TextColumns, labels: TrainingLabels
) -> Callable[[TextColumns, str], np.ndarray] | None:
    """Fit a linear model on TF-IDF vectors; None if no text has words.

    The returned function takes texts and the name of a prediction method of scikit-learn.
    """
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge

    vectorizers = [
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=WORD_PATTERN, min_df=1)
        for _ in train
    ]
    try:
        vectors = [
            vectorizer.fit_transform(column) for vectorizer, column in zip(vectorizers, train, strict=True)
        ]
    except ValueError:  # scikit-learn's "empty vocabulary": no text contains a word
        return None
    inputs = hstack(vectors).tocsr()

    def fit(model: Any, part: TrainingLabels) -> Any:
        """Return the fitted model, or the class if there is only one."""
        rows, targets, weights = part.expand_soft_labels()
        if targets.dtype.kind != "f" and len(np.unique(targets)) == 1:
            return targets[0]
        return model.fit(inputs if part.are_plain else inputs[rows], targets, weights)

    if labels.labels.dtype.kind == "f":
        models = [fit(Ridge(), labels)]
    elif labels.labels.ndim == 2:
        parts = map(labels.get_label, range(labels.labels.shape[1]))
        models = [fit(LogisticRegression(C=10.0, max_iter=1000), part) for part in parts]
    else:
        models = [fit(LogisticRegression(C=10.0, max_iter=1000), labels)]

    def predict(texts: TextColumns, method: str) -> np.ndarray:
        transformed = hstack([
            vectorizer.transform(column) for vectorizer, column in zip(vectorizers, texts, strict=True)
        ])  # fmt: skip
        columns = [
            getattr(model, method)(transformed)
            if hasattr(model, method)
            else np.full(transformed.shape[0], model)
            for model in models
        ]
        return np.stack(columns, 1) if labels.labels.ndim == 2 else columns[0]

    return predict


def predict_frequent_tag(
    train_words: Sequence[str],
    train_tags: np.ndarray,
    words: Sequence[str],
    outside: int,
    weights: np.ndarray | None = None,
) -> np.ndarray:
    """Return [m] int, the most frequent tag of each word in the n training words, the lowest id on ties.

    Unseen words get `outside`, the tag id of O. A training word counts by its weight, [n].
    """
    vocabulary = {word: word_id for word_id, word in enumerate(dict.fromkeys(train_words))}
    word_ids = np.fromiter(map(vocabulary.__getitem__, train_words), np.int64, len(train_words))
    num_tags = int(train_tags.max(initial=0)) + 1
    pairs, inverse = np.unique(word_ids * num_tags + train_tags, return_inverse=True)
    counts = np.bincount(inverse, weights, minlength=len(pairs))
    pair_word, pair_tag = np.divmod(pairs, num_tags)
    # The pairs ascend by word and tag, and the sort is stable. The lowest tag id of a tie thus comes first.
    order = np.lexsort((-counts, pair_word))
    _, first = np.unique(pair_word, return_index=True)
    tag_by_word = np.append(pair_tag[order[first]], outside)  # unseen words have the index -1
    return tag_by_word[np.fromiter(map(vocabulary.get, words, repeat(-1)), np.int64, len(words))]


def predict_overlap(questions: Sequence[str], contexts: Sequence[str]) -> list[str]:
    """Return the sentence of each context that has the most distinct words in common with the question.

    The first sentence wins a tie. Words are those of `split_words`; in scripts without spaces, a word is a
    character. Sentences have no surrounding white space; that of a context without sentences is "".
    """
    sentences_by_context: dict[str, list[tuple[str, set[str]]]] = {}
    for context in set(contexts):
        bounds = get_sentence_boundaries(detect_language(context), replace_surrogates(context))
        texts = (context[bound["start_index"] : bound["end_index"]].strip() for bound in bounds)
        sentences_by_context[context] = [(text, _collect_words(text)) for text in texts if text]
    predicted = []
    for question, context in zip(questions, contexts, strict=True):
        words, sentences = _collect_words(question), sentences_by_context[context]
        best = max(sentences, key=lambda sentence: len(words & sentence[1]), default=("", set()))
        predicted.append(best[0])
    return predicted


def _collect_words(text: str) -> set[str]:
    return {word for word in split_words(text.casefold()) if word[0].isalnum()}
