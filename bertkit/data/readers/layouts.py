"""Layouts in which annotation tools and public datasets write rows: recognize and convert them.

`RECORD_LAYOUTS` lists the layouts of JSON objects and of rows of tables. A layout is recognized by the first
rows of a file. `read_document` opens the containers of rows in a JSON document.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from bertkit.errors import UserError, format_count
from bertkit.utils.text import parse_list

Record = dict[str, Any]
NumberedRecords = Iterator[tuple[int, Record]]  # with the number of the row in the file
SEEN_ROWS = 20  # rows by which a layout is recognized


@dataclass(frozen=True, kw_only=True)
class FileLayout:
    """A layout of a file or a folder.

    Attributes:
        name: The tool or the dataset that writes it.
        shape: How it is recognized, for the documentation.
        reading: How it is read, or which export can be read instead, for the documentation.
        tasks: The tasks that read it.
    """

    name: str
    shape: str
    reading: str
    tasks: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class RecordLayout(FileLayout):
    """A layout of rows: JSON objects, or rows of a table.

    Attributes:
        matches: Returns whether the first rows of a file have the layout.
        convert: Returns a row in columns that tasks read, or the kind of rows with which it is left out.
        join: Replaces `convert` if several rows of the file are one row. It yields the joined rows.
    """

    matches: Callable[[Sequence[Record]], bool]
    convert: Callable[[Record], Record | str] = field(default=lambda record: record)
    join: Callable[[NumberedRecords], NumberedRecords] | None = None

    def read(self, file: object, records: NumberedRecords, left_out: Counter[str]) -> NumberedRecords:
        """Yield converted rows, and count those that are left out by their kind.

        The layout is that of the first rows, so a later row, or a value in any row, may not have it.
        """
        if self.join is not None:
            yield from self.join(records)
            return
        for number, record in records:
            try:
                row = self.convert(record)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise UserError(
                    f"{file}: row {number}: is not complete or has values of other types than {self.name} "
                    f"({self.shape}), which the first rows are; correct or remove the row"
                ) from error
            if isinstance(row, str):
                left_out[row] += 1
            else:
                yield number, row


def describe_layout(file: Path, layout: str, num_rows: int, left_out: Mapping[str, int] | None = None) -> str:
    """Return a note such as `a.jsonl is read as Prodigy: 1,477 rows, 12 rejected rows left out`."""
    parts = [format_count(num_rows, "row")]
    parts += [f"{count:,} {kind} left out" for kind, count in (left_out or {}).items()]
    return f"{file.name} is read as {layout}: {', '.join(parts)}"


def find_record_layout(records: Sequence[Record], task: str) -> RecordLayout | None:
    """Return the layout of the first rows of a file that a task reads; None if they need no conversion."""
    layouts = (layout for layout in RECORD_LAYOUTS if task in layout.tasks)
    return next((layout for layout in layouts if records and layout.matches(records)), None)


def convert_records(
    file: object, records: NumberedRecords, left_out: Counter[str], task: str
) -> tuple[RecordLayout | None, NumberedRecords]:
    """Return the layout of the rows of a file, or None, and an iterator over the converted rows."""
    seen = list(islice(records, SEEN_ROWS))
    layout = find_record_layout([record for _, record in seen], task)
    rows = chain(seen, records)
    return layout, rows if layout is None else layout.read(file, rows, left_out)


def _most_rows(records: Sequence[Record], test: Callable[[Record], bool]) -> bool:
    """Return whether a test is true for most rows; `RecordLayout.read` refuses a damaged one."""
    return 2 * sum(map(test, records)) > len(records)


# ---- annotation tools


def _is_span(value: Any) -> bool:
    return isinstance(value, Mapping) and "start" in value and "end" in value


def _read_label_studio(record: Record) -> Record | str:
    annotations = [entry for entry in record["annotations"] if not entry.get("was_cancelled")]
    if not annotations:
        return "tasks without an annotation"
    row: Record = {**record["data"], "spans": []}
    answers: Record = {}
    for region in annotations[0].get("result", []):
        kind = region.get("type", "")
        is_span = kind.endswith("labels")  # a choice about a region has its offsets, too
        value = region["value"] if is_span else region.get("value", {})
        if is_span:
            for label in value.get(kind, value.get("labels", [])):
                row["spans"].append(
                    {"start": value["start"], "end": value["end"], "label": label, **_text_of(value)}
                )
        elif kind in ("choices", "rating", "number"):
            answers[region.get("from_name", "label")] = value.get(kind)
    if len(answers) == 1:  # the usual name of the column, unless the annotators answered several questions
        [answer] = answers.values()
        answers = {"label": answer}
    return {**row, **answers}


def _text_of(value: Mapping[str, Any]) -> Record:
    return {"text": value["text"]} if isinstance(value.get("text"), str) else {}


def _read_label_studio_min(record: Record) -> Record:
    row: Record = {}
    for name, cell in record.items():
        value = cell
        if isinstance(cell, str) and cell[:2] in ("[{", '{"'):
            with suppress(ValueError, RecursionError):
                value = json.loads(cell)
        if isinstance(value, Mapping) and "choices" in value:
            value = value["choices"]
        if isinstance(value, list) and value and all(map(_is_span, value)):
            row["spans"] = [
                {"start": span["start"], "end": span["end"], "label": label, **_text_of(span)}
                for span in value
                for label in span.get("labels", [])
            ]
        else:
            row[name] = value
    return row


def _is_label_studio_min(records: Sequence[Record]) -> bool:
    """Return whether rows have an annotation that is not a plain text."""

    def has_annotation(record: Record) -> bool:
        converted = _read_label_studio_min(record)
        return "spans" in converted or converted != record

    has_keys = _most_rows(records, lambda record: "annotation_id" in record and "annotator" in record)
    return has_keys and any(map(has_annotation, records))


PRODIGY_KEYS = {"label", "spans", "options", "accept", "tokens", "_input_hash", "_task_hash"}
PRODIGY_ANSWERS = {"accept": "", "reject": "rejected rows", "ignore": "ignored rows"}


def _read_prodigy(record: Record) -> Record | str:
    if kind := PRODIGY_ANSWERS[record["answer"]]:
        return kind
    row = {
        name: value for name, value in record.items() if name not in ("tokens", "answer", "options", "accept")
    }
    if "accept" in record and "options" in record:
        row["label"] = record["accept"]
    elif "label" not in record:
        row["spans"] = record.get("spans") or []
    return row


def _read_spans_by_type(record: Record) -> Record:
    """Return the row of CLUENER's {"TYPE": {"text": [[first character, last character]]}}."""
    spans = [
        {"start": start, "end": last + 1, "label": kind, "text": text}
        for kind, bounds_by_text in record["label"].items()
        for text, bounds in bounds_by_text.items()
        for start, last in bounds
    ]
    return {**{name: value for name, value in record.items() if name != "label"}, "spans": spans}


def _is_cluener(records: Sequence[Record]) -> bool:
    labels = [record["label"] for record in records if isinstance(record.get("label"), Mapping)]
    nested = [value for label in labels for value in label.values()]
    return bool(nested) and all(isinstance(value, Mapping) for value in nested)


def _read_doccano(record: Record) -> Record:
    row = {name: value for name, value in record.items() if name not in ("entities", "relations")}
    spans = [
        {"start": entity["start_offset"], "end": entity["end_offset"], "label": entity["label"]}
        for entity in record["entities"] or []
    ]
    return {**row, "spans": spans}


# ---- multiple choice


def _read_choice_objects(record: Record) -> Record:
    """Return the row of choices with names, to one of which `answerKey` refers."""
    row = dict(record)
    if isinstance(row.get("question"), Mapping):
        question = row.pop("question")
        row["question"], row["choices"] = question.get("stem"), question.get("choices")
    choices = row["choices"]
    if isinstance(choices, Mapping):
        texts, names = list(choices["text"]), list(choices.get("label") or [])
    else:
        texts, names = [choice["text"] for choice in choices], [choice.get("label") for choice in choices]
    row["choices"] = texts
    if (key := row.get("answerKey")) not in (None, ""):
        row["answerKey"] = chr(ord("A") + names.index(key)) if key in names else key
    return row


def _has_choice_objects(records: Sequence[Record]) -> bool:
    def matches(record: Record) -> bool:
        question = record.get("question")
        choices = question.get("choices") if isinstance(question, Mapping) else record.get("choices")
        if isinstance(choices, Mapping):
            return isinstance(choices.get("text"), list)
        return (
            isinstance(choices, list)
            and bool(choices)
            and all(isinstance(choice, Mapping) and "text" in choice for choice in choices)
        )

    return _most_rows(records, matches)


# ---- questions


def _read_context(record: Record) -> Record | str:
    """Return a context with its questions as an article of SQuAD with one paragraph."""
    if "header" in record and "qas" not in record:
        return "headers"
    if not isinstance(record["qas"], list):
        raise TypeError("the questions are not a list")
    questions = []
    for qa in record["qas"]:
        question = dict(qa)
        for name, names in (("question", ("query_text", "query")), ("id", ("query_id", "qid"))):
            if name not in question:
                question[name] = next((question[other] for other in names if other in question), None)
        if "detected_answers" in qa:
            question["answers"] = [
                {"text": answer["text"], "answer_start": start}
                for answer in qa["detected_answers"]
                for start, _ in answer["char_spans"]
            ]
        questions.append(question)
    context = record.get("context", record.get("context_text"))
    return {"title": record.get("title"), "paragraphs": [{"context": context, "qas": questions}]}


def _has_contexts(records: Sequence[Record]) -> bool:
    rows = records[1:] if "header" in records[0] else records
    return bool(rows) and _most_rows(
        rows,
        lambda record: (
            isinstance(record.get("qas"), list) and ("context" in record or "context_text" in record)
        ),
    )


# ---- tables of words

SENTENCE_COLUMN = re.compile(r"(sentence|sent)[ _]?(#|id|no|nr|number)", re.IGNORECASE)
DOCUMENT_COLUMN = re.compile(r"(doc|document)([ _]?(#|id|no|nr|number))?", re.IGNORECASE)
WORD_COLUMN = re.compile(r"words?|tokens?|form", re.IGNORECASE)
TAG = re.compile(r"O|[BIESLUM]-\S+")


def _is_word_per_row(records: Sequence[Record]) -> bool:
    has_sentences = any(map(SENTENCE_COLUMN.fullmatch, records[0]))
    word_columns = [name for name in records[0] if WORD_COLUMN.fullmatch(name)]
    return has_sentences and any(
        all(isinstance(record.get(name), str) and len(record[name].split()) == 1 for record in records)
        for name in word_columns
    )


def _join_words(rows: NumberedRecords) -> NumberedRecords:
    """Yield one row per sentence, with the list of its cells in each column.

    A sentence begins where its number or its document is another one. Only the first word needs the number.
    """
    current, first_number = dict[str, Any](), 0
    cells: dict[str, list[Any]] = {}
    for number, record in rows:
        keys = {
            name: value
            for name, value in record.items()
            if SENTENCE_COLUMN.fullmatch(name) or DOCUMENT_COLUMN.fullmatch(name)
        }
        given = {name: value for name, value in keys.items() if value not in (None, "")}
        if any(current.get(name) != value for name, value in given.items()):
            if cells:
                yield first_number, dict(cells)
            current, first_number, cells = given, number, {}
        for name, value in record.items():
            if name not in keys:
                cells.setdefault(name, []).append(value)
    if cells:
        yield first_number, dict(cells)


def _has_list_cells(records: Sequence[Record]) -> bool:
    return any(all(parse_list(record.get(name)) is not None for record in records) for name in records[0])


def _parse_list_cells(record: Record) -> Record:
    parsed = {name: parse_list(value) for name, value in record.items()}
    return {name: value if parsed[name] is None else parsed[name] for name, value in record.items()}


def _has_joined_tags(records: Sequence[Record]) -> bool:
    return any(_are_tags(records, name) for name in records[0])


def _are_tags(records: Sequence[Record], name: str) -> bool:
    """Return whether the cells of a column hold tags, some of them several."""
    cells = [record[name].split() if isinstance(record.get(name), str) else [] for record in records]
    return all(cell and all(map(TAG.fullmatch, cell)) for cell in cells) and any(
        len(cell) > 1 for cell in cells
    )


def _split_joined_cells(record: Record) -> Record:
    """Split the cells that have as many parts as the cell of tags."""
    counts = {name: len(value.split()) for name, value in record.items() if isinstance(value, str)}
    num_tags = next(
        (n for name, n in counts.items() if n and all(map(TAG.fullmatch, record[name].split()))), 0
    )
    return {
        name: value.split() if counts.get(name) == num_tags and isinstance(value, str) else value
        for name, value in record.items()
    }


WORD_TABLES = (
    RecordLayout(
        name="table with one word per row",
        shape="columns such as `Sentence #`, `Word`, `Tag`; only the first word needs the number",
        reading="one sentence per number",
        tasks=["ner"],
        matches=_is_word_per_row,
        join=_join_words,
    ),
    RecordLayout(
        name="table with lists in its cells",
        shape="cells such as `['Mary', 'Stone']`, in the notation of Python, JSON or NumPy",
        reading="lists of words and tags",
        tasks=["ner"],
        matches=_has_list_cells,
        convert=_parse_list_cells,
    ),
    RecordLayout(
        name="table with joined words",
        shape="a cell of words and a cell of as many tags, both separated by spaces",
        reading="lists of words and tags",
        tasks=["ner"],
        matches=_has_joined_tags,
        convert=_split_joined_cells,
    ),
)

RECORD_LAYOUTS = (
    RecordLayout(
        name="Label Studio, JSON",
        shape="objects with `data` and `annotations`",
        reading="`data`, and the spans or choices of the first annotation that is not cancelled",
        tasks=["classify", "nli", "ner"],
        matches=lambda records: _most_rows(
            records,
            lambda record: (
                isinstance(record.get("data"), Mapping) and isinstance(record.get("annotations"), list)
            ),
        ),
        convert=_read_label_studio,
    ),
    RecordLayout(
        name="Label Studio, JSON-MIN or CSV",
        shape="rows with `annotation_id`, `annotator` and an annotation that is not plain text",
        reading="the text, and the spans or choices",
        tasks=["classify", "nli", "ner"],
        matches=_is_label_studio_min,
        convert=_read_label_studio_min,
    ),
    RecordLayout(
        name="Prodigy",
        shape="rows with `text`, a key such as `label` or `spans`, and the `answer` accept, reject or ignore",
        reading="the text, and the spans, label or accepted options; rejected and ignored rows are left out",
        tasks=["classify", "ner"],
        matches=lambda records: _most_rows(
            records,
            lambda record: (
                record.get("answer") in list(PRODIGY_ANSWERS)  # not in the dict: it may be unhashable
                and "text" in record
                and not PRODIGY_KEYS.isdisjoint(record)
            ),
        ),
        convert=_read_prodigy,
    ),
    RecordLayout(
        name="doccano, relations",
        shape="objects with `text`, `entities` and `relations`",
        reading="the text and the entities; relations are not read",
        tasks=["ner"],
        matches=lambda records: _most_rows(
            records, lambda record: {"text", "entities", "relations"} <= record.keys()
        ),
        convert=_read_doccano,
    ),
    RecordLayout(
        name="CLUENER",
        shape="`label` is an object of types, texts and the positions of their first and last character",
        reading="the text and the spans",
        tasks=["ner"],
        matches=_is_cluener,
        convert=_read_spans_by_type,
    ),
    RecordLayout(
        name="ARC, OpenBookQA and CommonsenseQA",
        shape='`choices` are {"text": [...], "label": [...]} or a list of {"text", "label"}',
        reading="the question, the choices, and the one that `answerKey` names",
        tasks=["swag"],
        matches=_has_choice_objects,
        convert=_read_choice_objects,
    ),
    RecordLayout(
        name="list of contexts with questions",
        shape="objects with `context` (or `context_text`) and `qas`: simpletransformers, CMRC, MRQA",
        reading="articles with one paragraph",
        tasks=["qa"],
        matches=_has_contexts,
        convert=_read_context,
    ),
    *WORD_TABLES,
)


# ---- documents: containers of rows in JSON


@dataclass(frozen=True, kw_only=True)
class DocumentLayout(FileLayout):
    """A layout of a JSON document; `unwrap` returns its records or columns, or None for another layout."""

    unwrap: Callable[[Any], Any]


def read_document(document: Any) -> tuple[str | None, Any]:
    """Return the name of the layout of a JSON document (None for a usual one), and its records or columns."""
    for layout in DOCUMENT_LAYOUTS:
        if (rows := layout.unwrap(document)) is not None:
            return layout.name, rows
    return None, document


def _unwrap_spacy(document: Any) -> list[Record] | None:
    """Return the rows of spaCy's [text, {"entities": [[start, end, label]], "cats": {label: 0 or 1}}]."""
    if (
        isinstance(document, Mapping)
        and "annotations" in document
        and document.keys() <= {"classes", "annotations"}
    ):
        document = [entry for entry in document["annotations"] if entry is not None]
    if not isinstance(document, list) or not document:
        return None
    rows: list[Record] = []
    for entry in document:
        is_tuple = isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str)
        if not is_tuple or not isinstance(entry[1], Mapping):
            return None
        text, annotation = entry
        row: Record = {"text": text}
        if "cats" in annotation:
            row["label"] = [label for label, value in annotation["cats"].items() if float(value) >= 0.5]
        if "entities" in annotation:
            row["spans"] = annotation["entities"]
        rows.append(row)
    return rows


def _unwrap_pairs(document: Any) -> list[Record] | None:
    """Return the rows of lists of [text, label], such as those of CLINC150."""
    if not isinstance(document, list) or not document:
        return None
    for entry in document:
        is_pair = isinstance(entry, list) and len(entry) == 2
        if not is_pair or not isinstance(entry[0], str) or not isinstance(entry[1], (str, int)):
            return None
    return [{"text": text, "label": label} for text, label in document]


def _unwrap_pandas_columns(document: Any) -> dict[str, list[Any]] | list[Record] | None:
    """Return the columns of `DataFrame.to_json()`: an object of columns, which are objects of rows.

    With `orient="index"`, it is an object of rows, whose keys are not numbers.
    """
    if not isinstance(document, Mapping) or len(document) < 2:
        return None
    values = list(document.values())
    if not all(isinstance(value, Mapping) and value.keys() == values[0].keys() for value in values):
        return None
    if len(values[0]) < 2:
        return None
    if not all(map(str.isdecimal, values[0])):
        return values if all(map(str.isdecimal, document)) else None
    return {name: list(column.values()) for name, column in document.items()}


def _unwrap_pandas_split(document: Any) -> list[Record] | None:
    """Return the rows of `DataFrame.to_json(orient="split")`: column names and a list of rows."""
    if not isinstance(document, Mapping) or not {"columns", "data"} <= document.keys() <= {
        "columns",
        "index",
        "data",
    }:
        return None
    return [dict(zip(document["columns"], row, strict=True)) for row in document["data"]]


TEXT_TASKS = ("classify", "nli")
ALL_TASKS = ("classify", "nli", "ner", "qa", "swag")
DOCUMENT_LAYOUTS = (
    DocumentLayout(
        name="spaCy, training tuples",
        shape='JSON `[text, {"entities": [[start, end, label]]}]`, also in `{"annotations": [...]}`',
        reading="the text, and the spans, or the classes of `cats`",
        tasks=["classify", "ner"],
        unwrap=_unwrap_spacy,
    ),
    DocumentLayout(
        name="list of pairs",
        shape="JSON `[[text, label], ...]`",
        reading="text and label",
        tasks=TEXT_TASKS,
        unwrap=_unwrap_pairs,
    ),
    DocumentLayout(
        name="pandas, `to_json()`",
        shape='JSON `{"text": {"0": ..., "1": ...}, "label": {...}}`, or with `orient="index"`',
        reading="the columns, or the rows",
        tasks=ALL_TASKS,
        unwrap=_unwrap_pandas_columns,
    ),
    DocumentLayout(
        name='pandas, `to_json(orient="split")`',
        shape='JSON `{"columns": [...], "data": [[...]]}`',
        reading="the rows",
        tasks=ALL_TASKS,
        unwrap=_unwrap_pandas_split,
    ),
)


# ---- lines of text

FASTTEXT_LABEL = re.compile(r"__label__(\S+)\s*")


def is_fasttext(sample: str) -> bool:
    """Return whether each of the first lines of a text begins with a label of fastText."""
    lines = [line for line in sample.split("\n", SEEN_ROWS + 1)[: SEEN_ROWS + 1] if line.strip()]
    return bool(lines) and all(map(FASTTEXT_LABEL.match, lines[:SEEN_ROWS]))


def parse_fasttext(lines: Iterable[str], left_out: Counter[str]) -> NumberedRecords:
    """Yield the text and the list of labels of each line that has a label, and count the other texts."""
    for number, line in enumerate(lines, start=1):
        labels, text = [], line.strip()
        while match := FASTTEXT_LABEL.match(text):
            labels.append(match[1])
            text = text[match.end() :]
        if labels:
            yield number, {"text": text, "label": labels}
        elif text:
            left_out["lines without a label"] += 1


# ---- lines of words

DOCSTART = "-DOCSTART-"  # begins a document
NO_WORD = "\0"  # in place of a line that holds no word and does not end a sentence
CONLLU_COLUMNS = ["ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC"]
NAME_IN_MISC = re.compile(r"(?:^|\t|\|)(?:name|NER|ner|NE)=([^|\s]+)")
LAYOUT_LINES = 200  # lines by which a layout is recognized
CONLLU_ID = re.compile(r"\d+([-.]\d+)?")
CONLL2012_BEGIN = "#begin document"
HEADER_TAGS = re.compile(r"tags?|ner([_ -]?tags?)?|labels?|entit(y|ies)|iob2?|bio", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class WordLayout(FileLayout):
    """A layout with one word per line that is more than columns of fields.

    Attributes:
        matches: Returns the names of the columns after the conversion, given the first lines of a file; None
            if the file has another layout.
        convert: Yields one line for each line of the file: TAB-separated fields, a blank line, or `NO_WORD`.
    """

    matches: Callable[[Sequence[str]], list[str] | None]
    convert: Callable[[Iterable[str]], Iterator[str]]


def find_word_layout(lines: Sequence[str]) -> tuple[WordLayout, list[str]] | None:
    """Return the layout of a file of words, given its first lines, and the names of its columns."""
    for layout in WORD_LAYOUTS:
        if columns := layout.matches(lines):
            return layout, columns
    return None


def _match_conllu(lines: Sequence[str]) -> list[str] | None:
    columns = list(CONLLU_COLUMNS)
    for line in lines:
        if line.startswith("# global.columns ="):  # CoNLL-U Plus
            columns = line.partition("=")[2].split()
    words = [line.split("\t") for line in lines if line.strip() and not line.startswith("#")]
    num_words = sum(len(fields) == len(columns) and bool(CONLLU_ID.fullmatch(fields[0])) for fields in words)
    if columns[0] != "ID" or 2 * num_words <= len(words):
        return None
    last_fields = {fields[-1] for fields in words}
    if columns == CONLLU_COLUMNS and any(map(TAG.fullmatch, last_fields - {"O"})):
        return None  # ten columns of another kind, whose last one holds tags
    has_names = columns[-1] == "MISC" and any(map(NAME_IN_MISC.search, last_fields))
    return [*columns, "NER"] if has_names else columns


def _convert_conllu(lines: Iterable[str]) -> Iterator[str]:
    """Yield the fields of each word, with a further one for the name in MISC if the file has names there."""
    lines = iter(lines)
    seen = list(islice(lines, LAYOUT_LINES))
    has_names = any(map(NAME_IN_MISC.search, seen))
    for line in chain(seen, lines):
        first, tab, rest = line.partition("\t")
        is_word = first.isdecimal() or not CONLLU_ID.fullmatch(first)
        if line.startswith("#") or (tab and not is_word):
            yield NO_WORD
        elif tab:
            form, *others = rest.split("\t")
            if has_names:
                name = NAME_IN_MISC.search(others[-1])
                others.append(name[1] if name else "O")
            yield "\t".join([first, form, *("O" if field == "_" else field for field in others)])
        else:
            yield line


def _match_conll2012(lines: Sequence[str]) -> list[str] | None:
    if any(line.startswith(CONLL2012_BEGIN) for line in lines):
        return ["word", "pos", "ner"]
    return None


def _convert_conll2012(lines: Iterable[str]) -> Iterator[str]:
    """Yield the words (field 3), parts of speech (4) and tags of names: `(PERSON*`, `*`, `*)` (10).

    A line with too few fields is not changed; then it has too few columns.
    """
    kind = ""
    for line in lines:
        fields = line.split()
        if not fields or line.startswith("#"):
            kind = ""
            yield "" if not fields else DOCSTART if line.startswith(CONLL2012_BEGIN) else NO_WORD
            continue
        if len(fields) < 12:
            yield line
            continue
        name = fields[10]
        begins = name.startswith("(")
        if begins:
            kind = name.strip("()*")
        tag = f"{'B' if begins else 'I'}-{kind}" if kind else "O"
        if name.endswith(")"):
            kind = ""
        yield f"{fields[3]}\t{fields[4]}\t{tag}"


def _match_webanno(lines: Sequence[str]) -> list[str] | None:
    return ["word", "ner"] if lines and lines[0].startswith("#FORMAT=WebAnno TSV 3") else None


def _convert_webanno(lines: Iterable[str]) -> Iterator[str]:
    """Yield the words and the tags of the layer of named entities, or else of a layer of the user.

    `PER[1]` is a word of entity 1, and `LOC` is an entity of one word.
    """
    column, first_field, best, entity = 3, 3, -1, ""
    for line in lines:
        if line.startswith("#T_"):
            name, *features = line.partition("=")[2].split("|")
            # DKPro's other layers, such as that of parts of speech, hold no entities.
            rank = 2 if name.endswith("NamedEntity") else int(not name.startswith("de.tudarmstadt.ukp.dkpro"))
            if rank > best:
                best, column = rank, first_field + ("value" in features and features.index("value"))
            first_field += max(1, len(features))
        fields = line.split("\t")
        if line.startswith("#") or (len(fields) > 2 and "." in fields[0]):  # `1-2.1` is a part of word 1-2
            yield NO_WORD
        elif len(fields) > column:
            value = fields[column].split("|")[0].replace("\\_", "_")
            kind, _, number = value.partition("[")
            if kind in ("_", "*"):
                entity, tag = "", "O"
            else:
                tag = f"{'I' if number and entity == value else 'B'}-{kind}"
                entity = value
            yield f"{fields[2]}\t{tag}"
        else:
            yield line


def _match_header(lines: Sequence[str]) -> list[str] | None:
    words = list(filter(_may_be_header, lines))
    if len(words) < 2:
        return None
    separator = "\t" if "\t" in words[0] else " "
    names, first = words[0].split(separator), words[1].split(separator)
    is_header = len(set(names)) == len(names) == len(first) > 1 and all(map(str.isidentifier, names))
    has_names = any(map(WORD_COLUMN.fullmatch, names)) and any(map(HEADER_TAGS.fullmatch, names))
    return names if is_header and has_names else None


def _may_be_header(line: str) -> bool:
    """Return whether a line is neither blank nor a comment."""
    return bool(line.strip()) and not line.startswith("#")


def _convert_header(lines: Iterable[str]) -> Iterator[str]:
    has_header = False
    for line in lines:
        yield line if has_header else NO_WORD
        has_header = has_header or _may_be_header(line)


WORD_LAYOUTS = (
    WordLayout(
        name="CoNLL-U",
        shape="ten TAB-separated fields, or those of `# global.columns`; comments with `#`",
        reading="the words of FORM, and the tags of NER (also `name=` in MISC) or UPOS; `_` is O",
        tasks=["ner"],
        matches=_match_conllu,
        convert=_convert_conllu,
    ),
    WordLayout(
        name="CoNLL-2012",
        shape="`#begin document`; names in brackets in the eleventh field",
        reading="the words and the names",
        tasks=["ner"],
        matches=_match_conll2012,
        convert=_convert_conll2012,
    ),
    WordLayout(
        name="WebAnno TSV 3 (INCEpTION)",
        shape="`#FORMAT=WebAnno TSV 3`",
        reading="the words, and the values of the layer of named entities",
        tasks=["ner"],
        matches=_match_webanno,
        convert=_convert_webanno,
    ),
    WordLayout(
        name="words with a header",
        shape="a first line such as `word tag`",
        reading="the line names the columns",
        tasks=["ner"],
        matches=_match_header,
        convert=_convert_header,
    ),
)


# ---- all layouts

# Layouts that other modules recognize: lines of text, folders, and what cannot be read.
OTHER_LAYOUTS = (
    FileLayout(
        name="fastText",
        shape="lines that begin with `__label__NAME`",
        reading="the labels and the text of each line",
        tasks=["classify"],
    ),
    FileLayout(
        name="table without a header",
        shape="a first line with a number, a repeated value or a long text; or `--no-header`",
        reading="columns 0, 1, ...",
        tasks=ALL_TASKS,
    ),
    FileLayout(
        name="sheet with `sep=`",
        shape="a first line such as `sep=;`",
        reading="a table with this delimiter",
        tasks=ALL_TASKS,
    ),
    FileLayout(
        name="object of splits, CLINC150",
        shape='JSON `{"train": [...], "test": [...]}`',
        reading="the splits",
        tasks=ALL_TASKS,
    ),
    FileLayout(
        name="parallel files, TweetEval",
        shape="`train_text.txt` and `train_labels.txt`",
        reading="one text and one label per line",
        tasks=["classify"],
    ),
    FileLayout(
        name="parallel files, ATIS and SNIPS",
        shape="`train/seq.in`, `train/seq.out` and `train/label`",
        reading="the words and tags, or the texts and labels",
        tasks=["classify", "ner"],
    ),
    FileLayout(
        name="folders of classes, 20 Newsgroups and IMDb",
        shape="`CLASS/FILE`, also within `train` and `test`; the files are `.txt` or have no suffix",
        reading="one text per file, with its folder as the label",
        tasks=["classify"],
    ),
    FileLayout(
        name="splits by suffix",
        shape="`NAME.train`, `NAME.dev` and `NAME.test`",
        reading="the splits",
        tasks=ALL_TASKS,
    ),
    FileLayout(
        name="WikiExtractor",
        shape="lines `<doc id=...>` and `</doc>`",
        reading="one document per article",
        tasks=["pretrain-mlm-nsp"],
    ),
    FileLayout(
        name="brat",
        shape="`.ann` beside `.txt`",
        reading="not read; write CoNLL files with brat's `tools/anntoconll.py`",
        tasks=[],
    ),
    FileLayout(
        name="XML, also dumps of Wikipedia",
        shape="`<?xml` or `<mediawiki`",
        reading="not read; write CSV, JSONL or plain text (WikiExtractor does this for dumps)",
        tasks=[],
    ),
    FileLayout(
        name="YAML",
        shape="`.yml` or `.yaml`",
        reading="not read; write CSV, JSON or JSONL",
        tasks=[],
    ),
    FileLayout(
        name="object around the rows, such as that of Rasa or LightTag",
        shape='JSON `{"examples": [{...}, {...}], ...}` without a text beside the list',
        reading="not read; write the list that the error names to a file of its own",
        tasks=[],
    ),
)
LAYOUTS: tuple[FileLayout, ...] = (*RECORD_LAYOUTS, *WORD_LAYOUTS, *DOCUMENT_LAYOUTS, *OTHER_LAYOUTS)
