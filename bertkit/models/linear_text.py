"""Linear models of words, character n-grams and static token vectors, which predict without an encoder.

Each input is a block of features. Its part for each text has unit length, and one linear layer reads all.
Prediction imports neither torch nor scikit-learn, whose imports take longer than to predict a thousand rows.
"""

import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from bertkit.errors import UserError
from bertkit.models.loading import CONFIG_FILE, LINEAR_TEXT_TYPE, WEIGHTS_FILE, load_linear_text_config
from bertkit.utils.files import write_text
from bertkit.utils.text import replace_surrogates

WORDS_FILE = "words.json"
WORDS_CRC_KEY = "words_crc32"  # in the metadata of the weights: the checksum of the file of words
STATIC_DIR = "static"  # the token vectors, in the format of model2vec
Input = Literal["words", "characters", "vectors"]
Texts = Sequence[str]


# ---- words and character n-grams

WORD = re.compile(r"(?u)\b\w+\b")
MAX_WORDS = 2**18  # words and word pairs, the most frequent ones
MAX_CHARACTERS = 5  # of an n-gram
BUCKET_BITS = 18  # with 16, hashes of different n-grams of Korean are often equal
# 2^64 divided by the golden ratio (Knuth, The Art of Computer Programming, volume 3, 6.4)
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def split_words(text: str) -> list[str]:
    """Return the words of a text in lowercase, and the pairs of adjacent words."""
    words = WORD.findall(text.lower())
    return words + [f"{first} {second}" for first, second in pairwise(words)]


def hash_characters(texts: Texts) -> tuple[np.ndarray, np.ndarray]:
    """Return [n] the index of the text of each character n-gram, and [n] the bucket of its hash.

    An n-gram has 2 to 5 characters. It lies within a word that has a space on each side, like those of the
    analyzer `char_wb` of scikit-learn.
    """
    parts = [f" {' '.join(text.lower().split())} " for text in texts]
    encoded = replace_surrogates("".join(parts)).encode("utf-32-le")
    codes = np.frombuffer(encoded, np.uint32).astype(np.uint64)
    text_index = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    is_space = codes == ord(" ")
    hashes, is_within = codes, np.ones(len(codes), bool)
    found_texts, found_buckets = [], []
    for length in range(2, MAX_CHARACTERS + 1):
        hashes = hashes[:-1] * MULTIPLIER + codes[length - 1 :]
        is_within = is_within[:-1]
        if length > 2:  # no character between the first and the last one is a space
            is_within = is_within & ~is_space[length - 2 : -1]
        # Two adjacent spaces are the end of a text and the start of the next one.
        selected = np.flatnonzero(is_within if length > 2 else ~(is_space[:-1] & is_space[1:]))
        mixed = hashes[selected] * MULTIPLIER
        mixed = (mixed ^ (mixed >> np.uint64(29))) * MULTIPLIER
        found_texts.append(text_index[selected])
        found_buckets.append((mixed >> np.uint64(64 - BUCKET_BITS)).astype(np.int64))
    return np.concatenate(found_texts), np.concatenate(found_buckets)


def count_pairs(rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> Any:
    """Return how often each pair of a row and a column occurs, as a sparse matrix."""
    from scipy.sparse import csr_matrix

    counts = csr_matrix((np.ones(len(rows), np.float32), (rows, columns)), shape=shape)
    counts.sum_duplicates()
    return counts


def weight_counts(counts: Any, idf: np.ndarray) -> Any:
    """Return the TF-IDF vectors of unit length, with 1 + log(count) as term frequency."""
    weighted = counts.copy()
    weighted.data = (1 + np.log(counts.data)) * idf[counts.indices]
    return scale_to_unit_length(weighted)


def scale_to_unit_length(vectors: Any) -> Any:
    norms = np.sqrt(vectors.multiply(vectors).sum(1)).A1
    scaled = vectors.copy()
    scaled.data = vectors.data / np.repeat(np.maximum(norms, 1e-12), np.diff(vectors.indptr))
    return scaled


def compute_idf(counts: Any) -> np.ndarray:
    """Return the smoothed inverse document frequency of each column; 0 for a column without a row."""
    frequency = np.bincount(counts.indices, minlength=counts.shape[1])
    idf = np.log((1 + counts.shape[0]) / (1 + frequency)) + 1
    return np.where(frequency > 0, idf, 0).astype(np.float32)


@dataclass
class Words:
    """The TF-IDF vectors of the words and word pairs of one text column."""

    words: list[str]
    idf: np.ndarray

    def __post_init__(self) -> None:
        self.index = {word: index for index, word in enumerate(self.words)}

    @classmethod
    def fit(cls, texts: Texts) -> "Words":
        words = list(map(split_words, texts))
        frequency = Counter(word for text_words in words for word in set(text_words))
        fitted = cls([word for word, _ in frequency.most_common(MAX_WORDS)], np.empty(0))
        fitted.idf = compute_idf(fitted.count(texts))
        return fitted

    def count(self, texts: Texts) -> Any:
        found = [[self.index.get(word, -1) for word in split_words(text)] for text in texts]
        columns = np.fromiter(chain.from_iterable(found), np.int64)
        rows = np.repeat(np.arange(len(texts)), [len(part) for part in found])
        is_known = columns >= 0
        return count_pairs(rows[is_known], columns[is_known], (len(texts), len(self.words)))

    def compute(self, texts: Texts) -> Any:
        return weight_counts(self.count(texts), self.idf)


@dataclass
class Characters:
    """The TF-IDF vectors of the character n-grams of one text column.

    Attributes:
        buckets: [features] the buckets of the training texts, ascending. Hashes in other buckets are ignored.
    """

    buckets: np.ndarray
    idf: np.ndarray

    def __post_init__(self) -> None:
        self.column = np.full(2**BUCKET_BITS, -1)
        self.column[self.buckets] = np.arange(len(self.buckets))

    @classmethod
    def fit(cls, texts: Texts) -> "Characters":
        fitted = cls(np.unique(hash_characters(texts)[1]), np.empty(0))
        fitted.idf = compute_idf(fitted.count(texts))
        return fitted

    def count(self, texts: Texts) -> Any:
        rows, buckets = hash_characters(texts)
        columns = self.column[buckets]
        is_known = columns >= 0
        return count_pairs(rows[is_known], columns[is_known], (len(texts), len(self.buckets)))

    def compute(self, texts: Texts) -> Any:
        return weight_counts(self.count(texts), self.idf)


# ---- static token vectors

STATIC_WEIGHTS = "embeddings"  # name of the tensor, as in model2vec


@dataclass(frozen=True)
class StaticVectors:
    """The vector of a text is the sum of the vectors of its tokens, with unit length.

    Attributes:
        embeddings: [tokens, size] float16.
        tokenizer: The tokenizer, without truncation and padding.
    """

    embeddings: np.ndarray
    tokenizer: Tokenizer

    def compute(self, texts: Texts) -> np.ndarray:
        """Return [n, size] float32; zeros for a text without tokens."""
        from scipy.sparse import csr_matrix

        encodings = self.tokenizer.encode_batch_fast(
            list(map(replace_surrogates, texts)), add_special_tokens=False
        )
        ids = [encoding.ids for encoding in encodings]
        columns = np.fromiter(chain.from_iterable(ids), np.int64)
        rows = np.repeat(np.arange(len(texts)), list(map(len, ids)))
        counts = count_pairs(rows, columns, (len(texts), len(self.embeddings)))
        used, inverse = np.unique(counts.indices, return_inverse=True)
        counts = csr_matrix((counts.data, inverse, counts.indptr), shape=(len(texts), len(used)))
        sums = counts @ self.embeddings[used].astype(np.float32)
        return sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)

    def compute_features(self, columns: Sequence[Texts]) -> np.ndarray:
        """Return the vectors of texts; of pairs u, v: u, v, |u - v| and u * v (Conneau et al. 2017)."""
        vectors = [self.compute(texts) for texts in columns]
        if len(vectors) == 1:
            return vectors[0]
        first, second = vectors
        return np.concatenate([first, second, np.abs(first - second), first * second], axis=1)

    def save(self, folder: Path) -> None:
        """Write the files that model2vec and the `StaticEmbedding` of sentence-transformers load."""
        folder.mkdir()
        save_file({STATIC_WEIGHTS: self.embeddings}, folder / WEIGHTS_FILE)
        self.tokenizer.save(str(folder / "tokenizer.json"))
        config = {"model_type": "model2vec", "normalize": True, "hidden_dim": self.embeddings.shape[1]}
        write_text(folder / CONFIG_FILE, json.dumps(config, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> "StaticVectors":
        tokenizer = (folder / "tokenizer.json").read_text("utf-8")
        json.loads(tokenizer)  # raises a `ValueError` for a truncated file, and tokenizers a bare `Exception`
        return cls(load_file(folder / WEIGHTS_FILE)[STATIC_WEIGHTS], Tokenizer.from_str(tokenizer))


# ---- the model

OUTPUT_WEIGHT, OUTPUT_BIAS = "output.weight", "output.bias"
PREDICTED_ROWS = 4096  # rows whose features are in memory at a time


@dataclass
class LinearTextModel:
    """A linear layer on the features of one text column, or of two.

    Attributes:
        config: What `config.json` has: the labels, and what the task adds.
        words: The words of each text column; empty if the model does not read words.
        characters: The same for character n-grams.
        vectors: The static token vectors, which all columns share; None if the model does not read them.
        weight: [outputs, features] of the linear layer.
        bias: [outputs] of the linear layer.
    """

    config: Any
    words: list[Words] = field(default_factory=list)
    characters: list[Characters] = field(default_factory=list)
    vectors: StaticVectors | None = None
    weight: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))
    bias: np.ndarray = field(default_factory=lambda: np.empty(0))

    @classmethod
    def fit_inputs(
        cls, config: Any, inputs: Sequence[Input], columns: Sequence[Texts], vectors: StaticVectors | None
    ) -> "LinearTextModel":
        """Return a model without a linear layer, whose inputs are fitted to the training texts.

        `columns` has one or two columns of n texts.
        """
        words = [Words.fit(texts) for texts in columns] if "words" in inputs else []
        characters = [Characters.fit(texts) for texts in columns] if "characters" in inputs else []
        return cls(config, words, characters, vectors if "vectors" in inputs else None)

    def compute_features(self, columns: Sequence[Texts]) -> Any:
        """Return the features [n, features] of texts, or of pairs of texts, as a sparse matrix."""
        from scipy.sparse import csr_matrix, hstack

        counted: list[Words | Characters] = [*self.words, *self.characters]
        blocks = [block.compute(columns[number % len(columns)]) for number, block in enumerate(counted)]
        if self.vectors is not None:
            blocks.append(csr_matrix(self.vectors.compute_features(columns)))
        return hstack(blocks, format="csr")

    def compute_logits(self, columns: Sequence[Texts]) -> np.ndarray:
        """Return the logits [n, outputs] in fp32."""
        logits = [np.empty((0, len(self.bias)), np.float32)]
        for start in range(0, len(columns[0]), PREDICTED_ROWS):
            part = [texts[start : start + PREDICTED_ROWS] for texts in columns]
            logits.append((self.compute_features(part) @ self.weight.T + self.bias).astype(np.float32))
        return np.concatenate(logits)

    @property
    def num_parameters(self) -> int:
        """Number of weights, including those of the token vectors."""
        embeddings = 0 if self.vectors is None else self.vectors.embeddings.size
        return int(self.weight.size + self.bias.size + embeddings)

    def _check_sizes(self) -> None:
        """Raise a `ValueError` unless the labels, the inputs and the layer belong together."""
        num_outputs, num_features = self.weight.shape
        if sorted(self.config.id2label) != list(range(num_outputs)) or len(self.bias) != num_outputs:
            raise ValueError(f"{len(self.config.id2label)} labels, but {num_outputs} outputs")
        counted: list[Words | Characters] = [*self.words, *self.characters]
        num_terms = sum(len(block.idf) for block in counted)
        size = 0 if self.vectors is None else self.vectors.embeddings.shape[1]
        if num_features - num_terms not in (size, 4 * size):  # of a text, or of a pair of texts
            raise ValueError(f"{num_terms + size} features, but weights for {num_features}")
        if any(len(words.words) != len(words.idf) for words in self.words):
            raise ValueError(f"{WORDS_FILE} has another number of words")
        if not (np.isfinite(self.weight).all() and np.isfinite(self.bias).all()):
            raise ValueError("a weight is not a finite number")

    @property
    def output_layer(self) -> dict[str, np.ndarray]:
        """The weight and the bias of the linear layer, by their names in the file of weights."""
        return {OUTPUT_WEIGHT: self.weight, OUTPUT_BIAS: self.bias}

    def set_output_layer(self, parameters: Mapping[str, np.ndarray]) -> None:
        """Replace the weight and the bias of the linear layer."""
        self.weight, self.bias = parameters[OUTPUT_WEIGHT], parameters[OUTPUT_BIAS]

    def save(self, folder: Path, config: dict[str, Any]) -> None:
        """Write the model into a directory; `config` is written to `config.json` with the `model_type`."""
        tensors = self.output_layer
        for number, words in enumerate(self.words):
            tensors[f"words.{number}.idf"] = words.idf
        for number, characters in enumerate(self.characters):
            tensors[f"characters.{number}.idf"] = characters.idf
            tensors[f"characters.{number}.buckets"] = characters.buckets.astype(np.uint32)
        metadata = {}
        if self.words:
            vocabulary = json.dumps([words.words for words in self.words], ensure_ascii=False)
            vocabulary = replace_surrogates(vocabulary) + "\n"
            write_text(folder / WORDS_FILE, vocabulary)
            metadata = {WORDS_CRC_KEY: str(zlib.crc32(vocabulary.encode()))}
        save_file(tensors, folder / WEIGHTS_FILE, metadata)
        if self.vectors is not None:
            self.vectors.save(folder / STATIC_DIR)
        config = {**config, "model_type": LINEAR_TEXT_TYPE}
        write_text(folder / CONFIG_FILE, json.dumps(config, indent=2, sort_keys=True) + "\n")

    @classmethod
    def load(cls, folder: Path) -> "LinearTextModel":
        """Load the model of a run."""
        try:
            with safe_open(folder / WEIGHTS_FILE, framework="numpy") as file:
                metadata = file.metadata() or {}
            tensors = load_file(folder / WEIGHTS_FILE)
            words: list[Words] = []
            characters: list[Characters] = []
            if "words.0.idf" in tensors:
                content = (folder / WORDS_FILE).read_bytes()
                if metadata.get(WORDS_CRC_KEY, str(zlib.crc32(content))) != str(zlib.crc32(content)):
                    raise ValueError(f"{WORDS_FILE} is not that of {WEIGHTS_FILE}")
                vocabularies = json.loads(content)
                words = [
                    Words(vocabulary, tensors[f"words.{number}.idf"])
                    for number, vocabulary in enumerate(vocabularies)
                ]
            while (idf := tensors.get(f"characters.{len(characters)}.idf")) is not None:
                buckets = tensors[f"characters.{len(characters)}.buckets"]
                characters.append(Characters(buckets.astype(np.int64), idf))
            vectors = StaticVectors.load(folder / STATIC_DIR) if (folder / STATIC_DIR).is_dir() else None
            weight, bias = tensors[OUTPUT_WEIGHT], tensors[OUTPUT_BIAS]
            model = cls(load_linear_text_config(folder), words, characters, vectors, weight, bias)
            model._check_sizes()
            return model
        except UserError:
            raise
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise UserError(
                f"{folder}: the files of the model are damaged ({' '.join(str(error).split())}); train the "
                "run again"
            ) from error


@dataclass(frozen=True)
class LinearTextEnsemble:
    """Several models, whose logits `combine` combines, [models, n, outputs] to [n, outputs]."""

    members: list[LinearTextModel]
    combine: Callable[[Any], Any]

    @property
    def config(self) -> Any:
        return self.members[0].config

    def compute_logits(self, columns: Sequence[Texts]) -> np.ndarray:
        """Return the combined logits [n, outputs] in fp32."""
        import torch  # `combine` takes a tensor, as for all tasks

        logits = np.stack([member.compute_logits(columns) for member in self.members])
        combined: np.ndarray = self.combine(torch.from_numpy(logits)).numpy()
        return combined
