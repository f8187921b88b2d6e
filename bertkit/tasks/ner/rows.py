"""Rows of `ner`: documents of sentences, columns of words and tags, and normalization."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from bertkit.data.columns import find_column, guess_column, require_column
from bertkit.data.language import WordSpans, join_words, split_words
from bertkit.data.table import (
    Column,
    Rows,
    as_column,
    combine_hashes,
    hash_values,
    iter_chunks,
    number_groups,
    select_values,
    store_columns,
)
from bertkit.errors import UserError, format_count, format_list, shorten_repr, suggest_similar
from bertkit.tasks.ner.tags import (
    Scheme,
    build_iob2_labels,
    count_violations,
    describe_notation,
    detect_scheme,
    find_first,
    find_invalid_tag,
    to_iob2,
)
from bertkit.utils.arrays import compute_offsets, concat_ranges
from bertkit.utils.text import has_lone_surrogate

DOCUMENT_COLUMNS = ["document", "document_id", "doc_id", "doc"]


@dataclass(frozen=True)
class DocumentPosition:
    """The position of a sentence in its document."""

    sentence_index: int
    num_sentences: int

    def __repr__(self) -> str:
        """Return a short text for fingerprints of rows, which contain the document's words already."""
        return f"{self.sentence_index} of {self.num_sentences}"


class ContextColumn(Column):
    """The positions of sentences in their documents, with the sentences of all documents.

    After a split, the documents include sentences of other splits.

    Args:
        words: [sentences] words of each sentence of all documents.
        texts: [sentences] text of each sentence of all documents.
        sentence: [n] index of each row's sentence.
        documents: [n, 2] first sentence and end of each row's document.
    """

    def __init__(
        self,
        words: Sequence[Sequence[str]],
        texts: Sequence[str],
        sentence: np.ndarray,
        documents: np.ndarray,
    ) -> None:
        self.words, self.texts = words, texts
        self.sentence, self.documents = sentence, documents

    def __len__(self) -> int:
        return len(self.sentence)

    def select(self, index: np.ndarray) -> "ContextColumn":
        return ContextColumn(self.words, self.texts, self.sentence[index], self.documents[index])

    def take(self, index: slice | np.ndarray) -> list[DocumentPosition]:
        return list(itertools.starmap(DocumentPosition, self._positions[index].tolist()))

    @property
    def _positions(self) -> np.ndarray:
        """[n, 2] index of each sentence in its document, and number of sentences of the document."""
        start, stop = self.documents.T
        return np.stack([self.sentence - start, stop - start], 1)

    @cached_property
    def hashes(self) -> np.ndarray:
        """[n] uint64 hash of each position."""
        distinct, inverse = np.unique(self._positions, axis=0, return_inverse=True)
        return hash_values(itertools.starmap(DocumentPosition, distinct.tolist()))[inverse.reshape(-1)]

    def collect_sentences(self) -> tuple[Sequence[Sequence[str]], Sequence[str], np.ndarray, np.ndarray]:
        """Return the sentences of the documents that the rows belong to.

        Returns:
            [sentences] words of each sentence, [sentences] its text, [n] index of each row's sentence, and
            [n, 2] first sentence and end of each row's document.
        """
        document, first_rows = number_groups(self.documents[:, 0])
        starts, stops = self.documents[first_rows].T
        offsets = compute_offsets(stops - starts)
        indices = concat_ranges(starts, stops)
        words, texts = (select_values(values, indices) for values in (self.words, self.texts))
        sentence = offsets[document] + self.sentence - self.documents[:, 0]
        return words, texts, sentence, np.stack([offsets[document], offsets[document + 1]], 1)


def get_document_keys(rows: Rows) -> np.ndarray | None:
    """Return [n] a key of the file and the document id of each row; None without document boundaries."""
    column = find_column(rows, *DOCUMENT_COLUMNS)
    if column is None:
        return None
    return combine_hashes([rows.file_index.astype(np.uint64), as_column(rows[column]).hashes])


def add_document_positions(rows: Rows) -> Rows:
    """Add the column `context` with the position of each row in its document.

    Consecutive rows of a file with the same document id form a document.
    """
    keys = get_document_keys(rows)
    if keys is None:
        raise UserError(
            f"{rows.files[0]}: --context document: cannot find document boundaries; add -DOCSTART- lines or "
            "a column 'document', or pass --context sentence"
        )
    is_first = np.ones(len(keys), bool)
    is_first[1:] = keys[1:] != keys[:-1]
    bounds = np.append(np.flatnonzero(is_first), len(keys))
    document = np.cumsum(is_first) - 1
    documents = np.stack([bounds[document], bounds[document + 1]], 1)
    context = ContextColumn(rows["tokens"], rows["text"], np.arange(len(keys)), documents)
    return rows.with_column("context", context)


TOKEN_COLUMNS = ["tokens", "words", "token", "word", "form", "text", "sentence"]
TAG_COLUMNS = [
    "ner_tags", "tags", "ner", "tag", "labels", "label", "entities", "spans", "ner_labels", "entity_labels",
    "upos",
]  # fmt: skip
RESERVED_COLUMNS = ("tokens", "text", "tags", "iob2", "context")  # columns that normalization creates
WIDENED_SPANS_NOTE = "spans end inside a word and are extended to the whole word"
MAX_ENTITY_TYPES = 200  # a column with more different types is probably not the tag column

# ---- columns


def resolve_columns(rows: Rows, token_column: str | None, tag_column: str | None) -> tuple[str, str]:
    """Return the columns of words and tags: those that the user passed by name or index, or else guesses."""
    token = (
        find_passed_column(rows, token_column, "--token-column")
        if token_column
        else _guess_token_column(rows)
    )
    tag = (
        find_passed_column(rows, tag_column, "--tag-column") if tag_column else _guess_tag_column(rows, token)
    )
    if token == tag:
        raise UserError(f"--tag-column {tag}: is already the token column; pass another column")
    return token, tag


def match_split_columns(rows: Rows, columns: tuple[str, str]) -> tuple[str, str | None]:
    """Return the columns of a split in any format; the tag column may be None."""
    if columns[0] in rows.columns:
        return columns
    token = _guess_token_column(rows)
    try:
        return token, _guess_tag_column(rows, token)
    except UserError:
        return token, None


def _guess_token_column(rows: Rows) -> str:
    """Guess the token column. In a column file, it is the first column that does not number the words."""
    column_numbers = [name for name in rows.columns if name.isdecimal()]
    if not column_numbers:
        return guess_column(rows, TOKEN_COLUMNS, "token")
    has_word_numbers = len(column_numbers) > 1 and all(words[0] == "1" for words in rows[column_numbers[0]])
    return column_numbers[1] if has_word_numbers else column_numbers[0]


def _guess_tag_column(rows: Rows, token_column: str) -> str:
    """Guess the tag column. In a column file, it is the last column."""
    if not token_column.isdecimal():
        return guess_column(rows, TAG_COLUMNS, "tag")
    column_numbers = [name for name in rows.columns if name.isdecimal() and name != token_column]
    if not column_numbers:
        raise UserError(f"{rows.files[0]}: has one column, the words, and no tags; add a tag column")
    return column_numbers[-1]


def find_passed_column(rows: Rows, column: str, flag: str) -> str:
    """Return the name of the column that the user passed by name or by index."""
    names = list(rows.columns)
    is_column_file = any(name.isdecimal() for name in names)  # columns without names are named by number
    if column.isdecimal() and not is_column_file and int(column) < len(names):
        return names[int(column)]
    require_column(rows, column, flag)
    return column


# ---- normalization


def parse_split(
    rows: Rows, split: str, columns: tuple[str, str], train_scheme: Scheme | None
) -> tuple[Rows, Scheme | None, list[str]]:
    """Normalize a split (see `normalize_sentences`), and add the column `iob2` with the tags in IOB2.

    Args:
        train_scheme: The scheme of the training rows, or None for the training rows themselves.

    Returns:
        The rows, the scheme of their tags (None without tags), and notes for the user.
    """
    token_column, tag_column = match_split_columns(rows, columns)
    sentences: Rows = normalize_sentences(rows, token_column, tag_column)
    num_widened = _count_widened_spans(rows, token_column, tag_column, sentences)
    notes, nonempty = [], [index for index, words in enumerate(sentences["tokens"]) if words]
    if not nonempty:
        raise UserError(f"{sentences.files[0]}: no row contains a word; check --token-column")
    if len(nonempty) < len(sentences):
        notes.append(f"{len(sentences) - len(nonempty):,} {split} rows without words skipped")
        sentences = sentences.select(nonempty)
    if num_widened:
        notes.append(f"{num_widened:,} {split} {WIDENED_SPANS_NOTE}")
    if "tags" not in sentences.columns:
        return sentences, None, notes
    tags = sentences["tags"]
    invalid = {tag for tag in set(chain.from_iterable(tags)) if has_lone_surrogate(tag)}
    if position := find_first(tags, invalid):
        index, word = position
        raise UserError(
            f"{sentences.format_location(index, word)}: tag {tags[index][word]!a} contains half of a "
            "surrogate pair, which UTF-8 cannot encode; rename the tag"
        )
    scheme = detect_scheme(tags, train_scheme)
    if position := find_invalid_tag(tags, scheme):
        index, word = position
        location = sentences.format_location(index, word)
        raise UserError(f"{location}: {tags[index][word]!r} is not a tag of {scheme}; correct the tag")
    if train_scheme not in (None, scheme):
        notes.append(f"the {split} tags use {scheme}")
    if train_scheme is None and (note := describe_notation(set(chain.from_iterable(tags)), scheme)):
        notes.append(note)
    if count := count_violations(tags, scheme):
        notes.append(f"{count:,} {split} tags violate {scheme.name} and are read by conlleval's rule")

    def iter_parts() -> Iterator[dict[str, list[Any]]]:
        for part in iter_chunks(tags):
            yield {"iob2": to_iob2(part, scheme)}

    iob2 = store_columns([tags], iter_parts, "iob2", repr(scheme))["iob2"]
    return sentences.with_column("iob2", iob2), scheme, notes


@dataclass(frozen=True)
class SentenceRows(Rows):
    """Rows whose type shows that they are normalized; a file may use the same column names."""


def normalize_sentences(rows: Rows, token_column: str, tag_column: str | None) -> SentenceRows:
    """Return the rows with the columns `tokens`, `text`, `context` and, if the rows are tagged, `tags`.

    `split_words` splits texts into words, and entity spans of texts become IOB2 tags. If any other column has
    a reserved name, it is renamed to `input_NAME`.
    """
    require_column(rows, token_column, "the words")
    names = [token_column]
    if (
        tag_column is not None
        and tag_column in rows.columns
        and any(value is not None for value in rows[tag_column])
    ):
        names.append(tag_column)

    def iter_parts() -> Iterator[dict[str, list[Any]]]:
        for chunk in rows.iter_chunks(names=names) if len(rows) else [rows]:
            values = chunk[token_column]
            words = [_parse_words(chunk, index, value, token_column) for index, value in enumerate(values)]
            texts = [
                value if isinstance(value, str) else join_words(sentence)
                for value, sentence in zip(values, words, strict=True)
            ]
            part: dict[str, list[Any]] = {"tokens": words, "text": texts}
            for column in names[1:]:
                part["tags"] = [
                    convert_spans_to_tags(chunk, index, value, texts[index], words[index])
                    if isinstance(values[index], str)
                    else _parse_tags(chunk, index, value, words[index], column)
                    for index, value in enumerate(chunk[column])
                ]
            yield part

    columns: dict[str, Sequence[Any]] = {
        f"input_{name}" if name in RESERVED_COLUMNS else name: column
        for name, column in rows.columns.items()
        if name not in (token_column, tag_column)
    }
    new_columns = store_columns([rows[name] for name in names], iter_parts, "sentences")
    words, texts = new_columns["tokens"], new_columns["text"]
    # Each sentence is a document of its own, until `add_document_positions` replaces the column.
    sentence = np.arange(len(texts))
    context = ContextColumn(words, texts, sentence, np.stack([sentence, sentence + 1], 1))
    columns |= {"tokens": words, "text": texts, "context": context} | new_columns
    return SentenceRows(columns, rows.files, rows.file_index, rows.row_numbers, rows.line_numbered_files)


def _parse_words(rows: Rows, index: int, value: Any, column: str) -> list[str]:
    if isinstance(value, str):
        return split_words(value)
    if not isinstance(value, (list, tuple)):
        location = f"{rows.format_location(index)}: column {column!r}"
        problem = "is empty" if value is None else f"expected a list of words or a text, found {value!r}"
        raise UserError(f"{location}: {problem}; write a list of words or a text")
    for position, word in enumerate(value):
        if not isinstance(word, str):
            location = rows.format_location(index, position)
            raise UserError(f"{location}: word {position + 1}: {word!r} is not a text; write it as a string")
    return list(value)


def _parse_tags(rows: Rows, index: int, value: Any, words: Sequence[str], column: str) -> list[str]:
    location = f"{rows.format_location(index)}: column {column!r}"
    num_words = format_count(len(words), "word")
    if not isinstance(value, (list, tuple)):
        problem = "contains no tags" if value is None else f"{value!r} is not a list of tags"
        raise UserError(f"{location}: {problem}; write one tag for each of {num_words}")
    if len(value) != len(words):
        num_tags = format_count(len(value), "tag")
        raise UserError(f"{location}: found {num_tags} for {num_words}; write one tag for each word")
    for position, tag in enumerate(value):
        if isinstance(tag, str) and tag:
            continue
        problem = "is a number without a name" if isinstance(tag, int) else "is not a tag"
        raise UserError(
            f"{rows.format_location(index, position)}: tag {tag!r} of {words[position]!r}: {problem}; "
            "write the tag itself"
        )
    return list(value)


def _count_widened_spans(rows: Rows, token_column: str, tag_column: str | None, sentences: Rows) -> int:
    """Count the spans that are not entities of the tags, because they begin or end inside a word."""
    if tag_column is None or tag_column not in rows.columns or "tags" not in sentences.columns:
        return 0
    count = 0
    columns = (rows[token_column], rows[tag_column], sentences["tags"], sentences["tokens"])
    for text, spans, tags, words in zip(*columns, strict=True):
        if isinstance(text, str):
            entities = extract_entities(tags, words, text)
            bounds = {(entity["start"], entity["end"]) for entity in entities}
            for start, stop, _ in filter(None, map(parse_span, spans)):
                span = text[start:stop]  # an entity has no white space at its ends
                count += (stop - len(span.lstrip()), start + len(span.rstrip())) not in bounds
    return count


# ---- entity types


def find_types(rows: Rows) -> set[str]:
    """Return the entity types of normalized rows; empty if they have no tags."""
    return {tag[2:] for tag in set(chain.from_iterable(rows.columns.get("iob2", ()))) - {"O"}}


def collect_types(rows: Rows, tag_column: str) -> list[str]:
    """Return the sorted entity types of normalized rows."""
    types = sorted(find_types(rows))
    location = f"{rows.files[0]}: column {tag_column!r}"
    if not types:
        raise UserError(f"{location}: all tags are O, so there is nothing to learn; check --tag-column")
    if len(types) > MAX_ENTITY_TYPES:
        raise UserError(
            f"{location}: has {len(types):,} different types, which are probably not tags; "
            "pass the tag column with --tag-column"
        )
    return types


def check_types(rows: Rows, types: Sequence[str]) -> None:
    """Raise a `UserError` for the first tag whose type is not one of `types`."""
    tags = set(chain.from_iterable(rows["iob2"]))
    position = find_first(rows["iob2"], tags - set(build_iob2_labels(types)))
    if position is None:
        return
    index, word = position
    unknown = rows["iob2"][index][word][2:]
    location = rows.format_location(index, word)
    raise UserError(
        f"{location}: tag {rows['tags'][index][word]!r} does not occur in the training rows "
        f"(they have {format_list(types)}){suggest_similar(unknown, types) or '; correct the tag'}"
    )


# ---- character spans of entities

# Accepted keys of spans that are objects: the first character, the end, and the type.
SPAN_KEYS = (
    ("start", "start_offset", "begin"),
    ("end", "end_offset", "stop"),
    ("label", "type", "entity_group", "entity", "tag", "labels"),
)


def convert_spans_to_tags(rows: Rows, index: int, value: Any, text: str, words: Sequence[str]) -> list[str]:
    """Convert a list of character spans to IOB2 tags. A word that overlaps a span belongs to the entity."""
    row = rows.format_location(index)
    if not isinstance(value, (list, tuple)):
        raise UserError(f"{row}: spans: expected a list of [start, end, type], found {value!r}")
    spans = []
    for item in value:
        span = parse_span(item)
        if span is None:
            raise UserError(
                f"{row}: cannot parse span {item!r}; for a text write [start, end, type] or objects "
                "with start, end and label, for a list of words write their tags"
            )
        start, stop, _ = span
        if not 0 <= start < stop <= len(text):
            raise UserError(
                f"{row}: span {start} to {stop}: is not inside the text, which has "
                f"{format_count(len(text), 'character')}; correct or remove the span"
            )
        own_text = item.get("text", item.get("name")) if isinstance(item, Mapping) else None
        if isinstance(own_text, str) and text[start:stop].split() != own_text.split():
            raise UserError(
                f"{row}: span {start} to {stop} is {shorten_repr(text[start:stop])}, but its text is "
                f"{shorten_repr(own_text)}; correct the offsets, which count characters (an emoji is one)"
            )
        spans.append(span)
    tags = ["O"] * len(words)
    positions = WordSpans.from_words([words], [text])
    for start, stop, type in sorted(spans):
        word_indices = np.flatnonzero((positions.start < stop) & (positions.stop > start)).tolist()
        if not word_indices:
            raise UserError(f"{row}: span {start} to {stop}: contains no word; correct or remove the span")
        if any(tags[word] != "O" for word in word_indices):
            raise UserError(
                f"{row}: span {start} to {stop}: overlaps another span at {words[word_indices[0]]!r}, and a "
                "word has one tag; remove one of the two spans"
            )
        for word in word_indices:
            tags[word] = f"{'B' if word == word_indices[0] else 'I'}-{type}"
    return tags


def parse_span(value: Any) -> tuple[int, int, str] | None:
    """Return start, end and type of a list, or of an object with the keys in `SPAN_KEYS`; or None."""
    if isinstance(value, Mapping):
        start, stop, type = (next((value[key] for key in keys if key in value), None) for keys in SPAN_KEYS)
        if isinstance(value.get("span"), list) and len(value["span"]) == 2:
            start, stop = value["span"]
        if isinstance(type, list) and len(type) == 1:
            [type] = type
        value = (start, stop, type)
    if not isinstance(value, (list, tuple)) or len(value) != 3:
        return None
    start, stop, type = value
    are_integers = all(isinstance(bound, int) and not isinstance(bound, bool) for bound in (start, stop))
    return (start, stop, type) if are_integers and isinstance(type, str) and type else None


def extract_entities(
    tags: Sequence[str], words: Sequence[str], text: str, scores: Sequence[float] | None = None
) -> list[dict[str, Any]]:
    """Return the entities of a sentence with their character spans, from its legal IOB2 tags.

    `scores` are the probabilities of the tags. The score of an entity is the mean over its words.
    """
    bounds: list[tuple[int, int]] = []
    for word, tag in enumerate(tags):
        if tag[0] == "B":
            bounds.append((word, word))
        elif tag[0] == "I":
            bounds[-1] = (bounds[-1][0], word)
    if not bounds:
        return []
    spans = WordSpans.from_words([words], [text])
    entities = []
    for first, last in bounds:
        start, end = int(spans.start[first]), int(spans.stop[last])
        entity = {"start": start, "end": end, "label": tags[first][2:], "text": text[start:end]}
        if scores:
            entity["score"] = round(sum(scores[first : last + 1]) / (last + 1 - first), 4)
        entities.append(entity)
    return entities
