"""Running text: find its files, split them into documents, and documents into sentences.

A text is one sentence per line, prose, or WikiText. Its lines become a stream of sentences in which None
separates documents.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from itertools import chain, islice, pairwise
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import regex
from sentencex import segment

from bertkit.data.columns import DOCUMENT_COLUMNS, guess_column
from bertkit.data.hub import (
    HubUnreachable,
    download_snapshot,
    find_cached_snapshot,
    list_hub_files,
    require_available,
)
from bertkit.data.language import CHINESE_JAPANESE, detect_language
from bertkit.data.offline import get_offline_directory
from bertkit.data.readers.formats import Dialect, detect_row_format, read_file, read_text_column
from bertkit.data.readers.parquet import is_saved_dataset, open_saved_dataset
from bertkit.data.readers.text_files import (
    EMPTY_FILE,
    Decoding,
    FileNotes,
    InputFile,
    RowTable,
    is_url,
    list_files,
    list_remote_files,
    read_text,
    split_lines,
)
from bertkit.data.sources import (
    SAMPLES_DIR,
    DatasetSpec,
    choose_dataset_name,
    describe_unassigned_files,
    find_dataset_spec,
    group_by_split,
    is_data_file,
    load_dataset,
    parse_hub_name,
    resolve_hub_dataset,
    select_split,
    splits_from_object,
)
from bertkit.data.table import as_column
from bertkit.errors import UserError, format_list
from bertkit.settings.run_settings import TextConfig
from bertkit.settings.validation import DataObject, DataSource
from bertkit.utils.cache import get_or_create
from bertkit.utils.files import expand_home, write_jsonl

TextFormat = Literal["sentences", "prose", "wikitext"]
SentenceStream = Iterator[str | None]
MAX_WRAPPED_LINE = 200  # characters; a longer line was not wrapped, so it is a whole paragraph
MAX_PARAGRAPH_LINES = 5_000  # a longer paragraph is split, to bound memory
DETECTION_LINES = 5_000  # lines from which the format is detected
# The lines around each article in the output of WikiExtractor.
ARTICLE_START, ARTICLE_END = regex.compile(r"<doc\s[^>]*>"), "</doc>"
HEADING = regex.compile(r"(= )+([^=\s]|[^=\s].*[^=\s])( =)+")
WIKITEXT_PUNCTUATION = regex.compile(r" @([-,.])@ ")
CHINESE_JAPANESE_LINE_BREAK = regex.compile(
    rf"(?<=[{CHINESE_JAPANESE}、。，！？：；」』）])\n(?=[{CHINESE_JAPANESE}「『（])"
)
SENTENCE_END = regex.compile(r"[\p{STerm}…:][\p{Pe}\p{Pf}\p{Pi}\"'’”\s]*$")

# The segmenter takes time quadratic in the length of an unclosed quotation. Its input is therefore bounded.
MAX_SEGMENTED_CHARACTERS = 50_000
MAX_SENTENCE_CHARACTERS = 10_000  # a longer sentence is split at white space
SENTENCE_PART = regex.compile(
    rf"(?s)\S(?:.{{0,{MAX_SENTENCE_CHARACTERS - 2}}}\S)?(?!\S)|\S{{{MAX_SENTENCE_CHARACTERS}}}"
)


# ---- formats


def iter_sentences(
    lines: Iterable[str], text_format: TextFormat, separator: str | None = None
) -> SentenceStream:
    """Yield the sentences of a text, and None between documents.

    By default, the separator between documents is a blank line in the format "sentences", and prose has none.
    WikiText does not use it.
    """
    stripped = (line.strip() for line in lines)
    if text_format == "sentences":
        for line in stripped:
            yield from [None] if line == (separator or "") else split_long_sentence(line)
        return
    is_wikitext = text_format == "wikitext"
    paragraphs = iter_wikitext(stripped) if is_wikitext else iter_paragraphs(stripped, separator)
    for paragraph in paragraphs:
        yield from (None,) if paragraph is None else split_sentences(paragraph)


def iter_paragraphs(lines: Iterable[str], separator: str | None = None) -> SentenceStream:
    """Yield the paragraphs, each as one line, and None for each separator; blank lines end paragraphs.

    Lines are joined with spaces, except between Chinese or Japanese characters.
    """
    paragraph: list[str] = []
    for line in chain(lines, [""]):
        is_unwrapped = len(line) > MAX_WRAPPED_LINE
        is_full = len(paragraph) == MAX_PARAGRAPH_LINES
        if paragraph and (is_unwrapped or is_full or line in ("", separator)):
            text = "\n".join(paragraph)
            if not text.isascii():
                text = CHINESE_JAPANESE_LINE_BREAK.sub("", text)
            yield text.replace("\n", " ")
            paragraph = []
        if separator and line == separator:
            yield None
        elif is_unwrapped:
            yield line
        elif line:
            paragraph.append(line)


def iter_wikitext(lines: Iterable[str]) -> SentenceStream:
    """Yield the lines that are paragraphs, and None before each article; headings are left out.

    The heading of an article has one `=` on each side and a blank line before or after it. The same line
    between two lines of text is a formula. Punctuation with spaces (`well @-@ known`, `1 @,@ 000`) is joined
    to the words around it.
    """
    previous = ""
    for line, following in pairwise(chain(lines, [""])):
        match = HEADING.fullmatch(line) if line[:2] == "= " else None
        opening, closing = (len(match.captures(1)), len(match.captures(3))) if match else (0, 0)
        level = opening if opening == closing else 0  # number of `=` on each side of a heading
        if level == 1 and not (previous and following):
            yield None
        elif line and level < 2:
            yield WIKITEXT_PUNCTUATION.sub(r"\1", line)
        previous = line


# ---- detection


def detect_format(sample: Iterable[str]) -> TextFormat:
    """Return the format of a text, given its first lines.

    The format is "sentences" only if most lines end like a sentence, most hold a single sentence, and hardly
    any continue on the next line. In addition, the groups of lines between blank lines must have two lines on
    average. These conditions exclude wrapped lines and the paragraphs of a novel.
    """
    lines = [line.strip() for line in islice(sample, DETECTION_LINES)]
    if None in iter_wikitext(lines):
        return "wikitext"
    text_lines = [line for line in lines if line]
    num_blocks = sum(bool(line) and not previous for previous, line in pairwise(["", *lines]))
    if num_blocks < 2 or len(text_lines) < 2 * num_blocks:
        return "prose"
    num_ended = sum(bool(SENTENCE_END.search(line)) for line in text_lines)
    num_continued = sum(
        bool(line) and following[:1].islower() and not SENTENCE_END.search(line)
        for line, following in pairwise(lines)
    )
    num_single = sum(len(list(islice(split_sentences(line), 2))) == 1 for line in text_lines)
    total = len(text_lines)
    is_sentences = 2 * num_ended > total and 20 * num_continued < total and 10 * num_single > 8 * total
    return "sentences" if is_sentences else "prose"


# ---- sentences


def split_sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text of one or several paragraphs, in time linear in its length.

    Sentences have no white space around them and at most `MAX_SENTENCE_CHARACTERS` characters.
    """
    language = detect_language(text)
    if len(text) <= MAX_SENTENCE_CHARACTERS:
        yield from filter(None, map(str.strip, segment(language, text)))
        return
    rest = ""
    for start in range(0, len(text), MAX_SEGMENTED_CHARACTERS):
        # The last sentence may continue in the next part.
        *sentences, rest = segment(language, rest + text[start : start + MAX_SEGMENTED_CHARACTERS])
        for sentence in sentences:
            yield from split_long_sentence(sentence)
        if len(rest) > MAX_SENTENCE_CHARACTERS:
            end = rest.rfind(" ") + 1 or len(rest)
            yield from split_long_sentence(rest[:end])
            rest = rest[end:]
    yield from split_long_sentence(rest)


def split_long_sentence(sentence: str) -> list[str]:
    """Return a list of the stripped sentence, or of its parts if it exceeds `MAX_SENTENCE_CHARACTERS`."""
    sentence = sentence.strip()
    if len(sentence) > MAX_SENTENCE_CHARACTERS:
        return SENTENCE_PART.findall(sentence)
    return [sentence] if sentence else []


# ---- documents

T = TypeVar("T")
DocumentStream = Iterator[Iterator[str]]
SKIP_BYTES_HINT = "drop such bytes with --encoding-errors skip"
DETECTION_ROWS = 1_000  # rows from which the text format is detected
ROWS_NOTE = "each row is a document"
WIKITEXT_ROWS_NOTE = "rows are lines of WikiText; each ' = Title = ' starts a document, headings are left out"
FORMAT_NOTES: dict[TextFormat, str] = {
    "sentences": "one sentence per line, blank lines between documents (detected: nearly every line is one "
    "sentence); pass --text-format prose if this is wrong",
    "prose": "prose, each file is a document; pass --text-format sentences or --document-separator if lines "
    "or blank lines separate sentences or documents",
    "wikitext": "WikiText, each ' = Title = ' starts a document, headings are left out; pass --text-format "
    "prose if this is wrong",
}


ARTICLE_SEPARATOR = "\0"  # a line that no text has
ARTICLES_NOTE = "the output of WikiExtractor, each <doc> is a document"


class DocumentLocation(NamedTuple):
    """Where a document begins: at the line or row `number` of a file, from 1."""

    file: InputFile
    number: int
    is_line: bool


@dataclass(frozen=True)
class TextOptions:
    """How text files are read.

    Attributes:
        text_format: Format of running text; None to detect it for each file.
        document_separator: Line between two documents; None for the separator of the text format.
        text_column: Column of the texts in files of rows; None to detect it for each file.
    """

    text_format: TextFormat | None = None
    document_separator: str | None = None
    text_column: str | None = None
    decoding: Decoding = field(default_factory=Decoding)

    @classmethod
    def from_config(
        cls, config: TextConfig, source: "TextSource", text_format: TextFormat | None = None
    ) -> "TextOptions":
        """Return the options from the settings; column and encoding are those of the source."""
        decoding = Decoding(source.encoding, config.encoding_errors, SKIP_BYTES_HINT)
        return cls(text_format, config.document_separator, source.column, decoding)


def iter_documents(
    files: Sequence[InputFile], options: TextOptions, notes: FileNotes | None = None
) -> DocumentStream:
    """Yield the sentences of each document; `notes` say how each file was read and what was left out."""
    return (sentences for _, sentences in iter_located_documents(files, options, notes))


def iter_located_documents(
    files: Sequence[InputFile], options: TextOptions, notes: FileNotes | None = None
) -> Iterator[tuple[DocumentLocation, Iterator[str]]]:
    """Yield the location and the sentences of each document.

    The location is the row or line after the end of the previous document.
    """
    require_available(files)
    notes, is_empty = notes or FileNotes(), True
    for path in files:
        has_rows, items, sentences = _open_sentences(path, options, notes)
        previous_end = 0
        for first in sentences:
            if first is not None:
                is_empty = False
                # None separates documents; `rest` ends at the next None or at the end of the file
                rest = iter(partial(next, sentences, None), None)
                yield DocumentLocation(path, previous_end + 1, not has_rows), chain([first], rest)
            previous_end = items.count
    if is_empty:
        raise _no_text_error(files, options)


class _CountedIterable(Generic[T]):
    """Iterable that counts the items it has yielded."""

    def __init__(self, items: Iterable[T]) -> None:
        self.items, self.count = items, 0

    def __iter__(self) -> Iterator[T]:
        for self.count, item in enumerate(self.items, start=1):  # noqa: B020
            yield item


def _open_sentences(
    path: InputFile, options: TextOptions, notes: FileNotes
) -> tuple[bool, _CountedIterable[str], SentenceStream]:
    """Return whether a file has rows, the iterable of its rows or lines, and the stream of its sentences.

    The rows or lines are read and counted as the sentences are consumed.
    """
    row_format = detect_row_format(path, options.text_column, options.decoding)
    text_format = options.text_format or ("prose" if options.document_separator else None)
    if row_format:
        read_texts = partial(read_text_column, path, row_format, options.text_column, options.decoding)
        if text_format is None:
            sample = _iter_lines(islice(read_texts(), DETECTION_ROWS))
            text_format = "wikitext" if detect_format(sample) == "wikitext" else "prose"
        is_wikitext, separator = text_format == "wikitext", options.document_separator
        notes.add(path, WIKITEXT_ROWS_NOTE if is_wikitext else ROWS_NOTE)
        rows = _CountedIterable(read_texts(notes))
        if is_wikitext:
            return True, rows, iter_sentences(_iter_lines(rows), text_format, separator)
        documents = (iter_sentences(text.split("\n"), text_format, separator) for text in rows)
        return True, rows, chain.from_iterable(chain(sentences, [None]) for sentences in documents)
    lines = _CountedIterable(split_lines(read_text(path, options.decoding, notes)))
    if has_articles(path, options.decoding):
        notes.add(path, ARTICLES_NOTE)
        return False, lines, iter_sentences(map(replace_article_lines, lines), "prose", ARTICLE_SEPARATOR)
    if text_format is None:
        text_format = detect_format(split_lines(islice(read_text(path, options.decoding), 1)))
        notes.add(path, FORMAT_NOTES[text_format])
    return False, lines, iter_sentences(lines, text_format, options.document_separator)


def has_articles(path: InputFile, decoding: Decoding) -> bool:
    """Return whether the first line with text begins an article of WikiExtractor."""
    lines = (line.strip() for line in next(read_text(path, decoding), "").split("\n"))
    return ARTICLE_START.fullmatch(next(filter(None, lines), "")) is not None


def replace_article_lines(line: str) -> str:
    """Return a separator for the line before an article, and a blank line for the line after it."""
    stripped = line.strip()
    if ARTICLE_START.fullmatch(stripped):
        return ARTICLE_SEPARATOR
    return "" if stripped == ARTICLE_END else line


def _iter_lines(texts: Iterable[str]) -> Iterator[str]:
    """Return an iterator over the lines of all texts."""
    return chain.from_iterable(text.removesuffix("\n").split("\n") for text in texts)


# ---- errors for files without text


def _no_text_error(files: Sequence[InputFile], options: TextOptions) -> UserError:
    """Return the error for files without text, which are grouped by reason."""

    def explain(path: InputFile) -> str:
        row_format = detect_row_format(path, options.text_column, options.decoding)
        if not row_format:
            has_characters = any(read_text(path, options.decoding))
            return "the file holds only white space; pass another file" if has_characters else EMPTY_FILE
        rows = sum(1 for _ in read_text_column(path, row_format, options.text_column, options.decoding))
        if not rows:
            return "the file has no rows; pass another file"
        column = f"in column {options.text_column!r}" if options.text_column else "in the text column"
        return f"all {rows:,} rows are empty {column}; pass another --text-column"

    files_by_reason: dict[str, list[InputFile]] = {}
    for path in files:
        files_by_reason.setdefault(explain(path), []).append(path)
    reasons = (f"{format_list(paths)}: no text: {reason}" for reason, paths in files_by_reason.items())
    return UserError("; ".join(reasons))


# ---- texts for tokenizer training


def iter_raw_texts(
    files: Sequence[InputFile], options: TextOptions, notes: FileNotes | None = None
) -> Iterator[str]:
    """Yield texts without splitting them into sentences.

    In a file of rows, each row is a text. In other files, each line is a text, except document separators.
    """
    require_available(files)

    def open_texts(path: InputFile) -> Iterator[str]:
        row_format = detect_row_format(path, options.text_column, options.decoding)
        if row_format:
            return read_text_column(path, row_format, options.text_column, options.decoding, notes)
        lines, separator = split_lines(read_text(path, options.decoding, notes)), options.document_separator
        if has_articles(path, options.decoding):
            lines, separator = map(replace_article_lines, lines), ARTICLE_SEPARATOR
        return (line for line in lines if line.strip() != separator) if separator else lines

    texts = chain.from_iterable(map(open_texts, files))
    for text in texts:  # until the first text that is not only white space; without one, raise an error
        yield text
        if text and not text.isspace():
            break
    else:
        raise _no_text_error(files, options)
    yield from texts


# ---- sources

SAMPLE_TEXT_DIR = SAMPLES_DIR / "text"
ARROW_SUFFIXES = (".arrow", ".feather")
SplitFiles = dict[str, tuple[InputFile, ...]]


@dataclass(frozen=True)
class TextSource:
    """The text files of a dataset.

    Attributes:
        name: Name for the run directory.
        location: Where the files were found, for the console.
        splits: Files of each split; there is always a "train" split.
        column: Column of the texts in files of rows; None to guess it for each file.
        encoding: Encoding of the files, as passed by the user; None for UTF-8 or that of a byte order mark.
            The files of the sample and of the cache are always UTF-8.
    """

    name: str
    location: str
    splits: SplitFiles
    column: str | None = None
    notes: list[str] = field(default_factory=list)
    encoding: str | None = None

    @property
    def files(self) -> tuple[InputFile, ...]:
        """Files of the training split."""
        return self.splits["train"]


def find_text(
    data: DataSource,
    data_dir: str | None = None,
    column: str | None = None,
    *,
    encoding: str | None = None,
    flag: str = "--data",
) -> TextSource:
    """Return the text files that `--data` or a similar flag names, or the rows of an object.

    An existing path takes precedence over a dataset name. The files of a directory, URL or Hub dataset are
    assigned to splits by their names, as for other tasks. If a known dataset has no text files, its texts are
    written to files in the cache. For flags other than `--data`, all files form one split.
    """
    if isinstance(data, DataObject):
        return _find_object_text(data, flag.lstrip("-"), column, flag)
    data = str(data)
    if is_saved_dataset(expand_home(data)):
        return _find_object_text(open_saved_dataset(expand_home(data)), data, column, flag)
    if data == "sample":
        files = tuple(list_files(str(SAMPLE_TEXT_DIR)))
        return TextSource("sample", "the sample shipped with bertkit", {"train": files})
    if is_url(data) or expand_home(data).exists() or not (find_dataset_spec(data) or parse_hub_name(data)):
        source = _find_files(data, column, flag)
    elif hub := resolve_hub_dataset(data, data_dir):
        source = _find_hub_text(data, *hub, column)
    else:
        return _find_known_text(data, data_dir, column, encoding)
    return replace(source, encoding=encoding)


def _find_object_text(data: DataObject, name: str, column: str | None, flag: str) -> TextSource:
    """Return the rows of an object in place of files; `name` is its name in errors."""
    splits, notes = splits_from_object(data, name, accepts_streams=True)
    if flag != "--data":
        splits = {"train": select_split(splits, flag.lstrip("-"), name)}
    if "train" not in splits:
        raise UserError(
            f"{name}: no training split among {format_list(splits)}; rename one of them to 'train'"
        )
    tables: SplitFiles = {split: (RowTable(rows, rows.files[0]),) for split, rows in splits.items()}
    run_name = choose_dataset_name(data, Path(name).name)
    location = name if Path(name).exists() else str(data)
    return TextSource(run_name, location, tables, column, notes)


def _find_files(data: str, column: str | None, flag: str) -> TextSource:
    """Return the files at a path or URL; Arrow and Feather files are opened as tables."""
    names: dict[Any, PurePath]
    if is_url(data):
        names = {file: PurePosixPath(file.name) for file in list_remote_files(data)}
        run_name = _derive_name(Path(data.partition("://")[2]).with_suffix(""))
    else:
        path, names = expand_home(data), {}
        for file in list_files(data, flag):
            is_table = file.suffix in ARROW_SUFFIXES
            opened = RowTable(read_file(file), file.name) if is_table else file
            names[opened] = file.relative_to(path) if path.is_dir() else PurePath()
        run_name = _derive_name(path)
    splits, notes = _assign_splits(names if flag == "--data" else dict.fromkeys(names, PurePath()))
    return TextSource(run_name, data, splits, column, notes)


def _derive_name(path: Path) -> str:
    """Return a name for the run directory.

    For a file or directory it is the file name without its extension. For a pattern it is the beginning,
    without wildcards, of the last path component that has one: `news` for `news-*.txt`, `texts` for
    `texts/[ab]*.txt`.
    """
    if path.exists():
        return path.stem.strip(".") or path.resolve().stem
    beginnings = (re.split(r"[*?[]", part)[0].strip("-_. ") for part in reversed(path.absolute().parts))
    return next((name for name in beginnings if name.strip("/")), "text")


def _assign_splits(
    names: Mapping[Any, PurePath], train_name: str | None = None
) -> tuple[SplitFiles, list[str]]:
    """Return the files of each split, and notes.

    A file name such as the title of a book may contain "test" or "train" by chance. File names therefore
    determine splits only if there is a training file and at least half of the files are named after a split.
    Otherwise all files are training text. `names` are relative to the directory of the files.
    """
    splits, unassigned = group_by_split(names)
    if "train" not in splits and train_name in splits:
        splits["train"] = splits.pop(train_name)
    if "train" in splits and 2 * len(unassigned) <= len(names):
        return {split: tuple(files) for split, files in splits.items()}, describe_unassigned_files(unassigned)
    if not splits:
        return {"train": tuple(names)}, []
    reason = (
        "most files are not named after a split" if "train" in splits else "no file is named after training"
    )
    other_splits = format_list(file.name for files in splits.values() for file in files)
    note = f"{reason}: all {len(names):,} files are training text, including {other_splits}"
    return {"train": tuple(names)}, [note]


def _find_known_text(data: str, data_dir: str | None, column: str | None, encoding: str | None) -> TextSource:
    dataset = load_dataset(data, "classify", data_dir, Dialect(encoding=encoding))
    train = dataset.splits["train"]
    column = column or dataset.defaults.get("text_column") or guess_column(train, DOCUMENT_COLUMNS, "text")
    splits: SplitFiles = {}
    for split, rows in dataset.splits.items():
        if column in rows.columns:
            splits[split] = (_write_texts(f"{dataset.name}-{split}", rows[column]),)
    return TextSource(dataset.name, dataset.source, splits, "text", dataset.notes)


def _write_texts(name: str, texts: Sequence[str]) -> Path:
    """Write the texts to a file of rows in the cache."""
    digest = blake2b(name.encode() + as_column(texts).hashes.tobytes(), digest_size=16).hexdigest()

    def write(folder: Path) -> None:
        write_jsonl(folder / f"{name}.jsonl", ({"text": text} for text in texts))

    folder = get_or_create("texts", digest, write)
    if folder is None:
        raise UserError(
            f"--data {name}: cannot write to the cache; set BERTKIT_CACHE_DIR to a writable directory"
        )
    return folder / f"{name}.jsonl"


# ---- Hub


def _find_hub_text(
    data: str, spec: DatasetSpec | None, hub: dict[str, Any], column: str | None
) -> TextSource:
    """Return the text files of a Hub dataset; if the Hub is unreachable, use the Hugging Face cache."""
    repo, revision, config = hub["id"], hub.get("revision"), hub.get("config")
    names: dict[Any, PurePath] = {}  # relative to the directory of the configuration
    folder, location = None, f"Hugging Face cache: {repo}"
    if get_offline_directory() is not None:
        folder = download_snapshot(repo, "dataset", revision, config, flag=f"--data {data}")
        location = f"Hub: {repo}"
    else:
        try:
            hint = spec.describe_download() if spec else ""
            files = list_hub_files(repo, revision, config, flag=f"--data {data}", alternative=hint)
            names = {file: PurePosixPath(file.path).relative_to(config or "") for file in files}
            location = f"Hub: {repo}, commit {files[0].commit[:7]}"
        except HubUnreachable:
            folder = find_cached_snapshot(repo, "dataset", revision, config)
            if folder is None:
                raise
    if folder is not None:
        names = {path: path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()}
    names = {file: name for file, name in names.items() if is_data_file(name)}
    directories = sorted({name.parts[0] for name in names.values() if len(name.parts) > 1})
    directory_splits, configurations = group_by_split({name: PurePath(name) for name in directories})
    if len(configurations) > 1 and not directory_splits:
        example = f"--data {data}{'/' if ':' in data else ':'}{configurations[0]}"
        raise UserError(
            f"--data {data}: has several configurations ({format_list(configurations)}); pass one, for "
            f"example {example}"
        )
    splits, notes = _assign_splits(names, hub.get("train"))
    if not column and spec:  # the text column of the known dataset, as named in the files on the Hub
        local_column = {**spec.defaults, **hub.get("defaults", {})}.get("text_column")
        renamed = hub.get("columns", {}).items()
        column = next((name for name, new_name in renamed if new_name == local_column), local_column)
    name = spec.run_name if spec else data.split("/", 1)[-1].replace(":", "-").replace("/", "-")
    return TextSource(name, location, splits, column, notes)
