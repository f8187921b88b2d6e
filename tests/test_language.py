"""The glossary: words and names that this repository does not use, and what it uses in their place.

Readers know PyTorch, transformers and the BERT paper. A private word for something that has a standard
name costs each of them a look-up, so the banned words below occur in no identifier, help text, message,
docstring, comment or document.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]

# Regular expression -> what to write. Matched against prose, and against identifiers split into words.
WORDS = {
    r"pieces?": "token(s)",
    r"told|said": "reported, printed, logged",
    r"stands?|standing|stood": "is, appears",
    r"(?:go|goes|going|gone|went) on": "resume, continue",
    r"parted": "separated, split",
    r"afresh|anew": "from scratch, again, re-initialized",
    r"mend(?:s|ed|ing|able)?": "fix",
    r"ways? out|way on": "fix, hint",
    r"(?:a|the) looks?": "data check",
    r"the house": "the architecture",
    r"floors": "layers",
    r"set aside|sets aside|setting aside|put aside|aside": "held out",
    r"drawn": "sampled",
    r"shares? of|a share|shares": "a fraction",
    r"cut|cuts|cutting": "truncated, split",
    r"as much a step": "same effective batch size",
    r"to the bits?": "bit-identical",
    r"undecided": "unlabeled",
    r"spare": "dummy batch",
}
# The same, where a word is banned as a name only.
NAMES = {r"figures": "metrics, statistics", r"^share$": "fraction", r"^look$": "data check"}
# The terms of the Korean pages: another translation -> the one of the table in docs/ko/README.md.
KOREAN_WORDS = {
    r"파인 ?튜닝|미세조정": "미세 조정",
    r"사전학습|프리트레이닝": "사전 학습",
    r"다음문장": "다음 문장",
    r"라벨": "레이블",
    r"데이터 ?세트|데이타": "데이터셋, 데이터",
    r"러닝 ?레이트|학습율|학습 속도": "학습률",
    r"배치 ?사이즈": "배치 크기",
    r"에포크": "에폭",
    r"기준선|기준 모델": "베이스라인",
    r"신뢰구간": "신뢰 구간",
    r"주의 마스크|주목 마스크": "어텐션 마스크",
    r"단어장|보캡": "어휘",
    r"절제 ?(?:실험|연구)": "어블레이션",
    r"메세지": "메시지",
    r"(?:되|하)여지": "the active voice",
    r"에 있어서": "에서",
}
# Where a banned word is right in its ordinary sense: (path, the text around it) -> why. At most 30.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("CHANGELOG.md", "`pieces` and `places`"): "keys that were renamed",
    ("docs/upgrade.md", "`pieces`, `places`"): "keys that were renamed",
    ("CHANGELOG.md", "`cut` is `truncated`"): "findings that were renamed",
    ("docs/upgrade.md", "`cut`, `question-cut`"): "findings that were renamed",
}


class Text(NamedTuple):
    """A name or a prose text, with where it is."""

    path: str
    line: int
    kind: str  # "name" or "prose"
    text: str


def python_files() -> list[Path]:
    return [
        path
        for folder in ("bertkit", "benchmarks", "tests")
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]


def document_files() -> list[Path]:
    documents = [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml"]
    for folder, pattern in (
        ("docs", "*.md"),
        ("recipes", "*.yaml"),
        ("profiles", "*.yaml"),
        ("bertkit", "*.yaml"),
    ):
        documents += sorted((ROOT / folder).rglob(pattern))
    return documents + sorted((ROOT / "bertkit").rglob("*.j2"))


def defined_names(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield the names that a module chooses: definitions, parameters, variables and attributes."""
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield getattr(node, "lineno", 0), node.asname


def prose(source: str, nodes: list[ast.AST], only_documentation: bool) -> Iterator[tuple[int, str]]:
    """Yield comments and strings; of a test only comments and docstrings, since its strings are data."""
    documentation = {
        node.body[0].value.lineno
        for node in nodes
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and ast.get_docstring(node) is not None
    }
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_string = token.type in (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1))
        wanted = is_string and (not only_documentation or token.start[0] in documentation)
        if wanted or token.type == tokenize.COMMENT:
            for number, line in enumerate(token.string.split("\n")):
                yield token.start[0] + number, line


@cache
def texts() -> tuple[Text, ...]:
    """Return all names and texts of the repository, except those of this file."""
    found = []
    for path in python_files():
        if path == Path(__file__):
            continue
        name, source = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        nodes = list(ast.walk(ast.parse(source)))
        found += [Text(name, line, "name", text) for line, text in defined_names(nodes)]
        found.append(Text(name, 0, "name", path.stem))
        if not ANY_WORD.search(source):  # the search for comments and strings is slow
            continue
        found += [
            Text(name, line, "prose", text) for line, text in prose(source, nodes, name.startswith("tests/"))
        ]
    for path in document_files():
        lines = path.read_text(encoding="utf-8").split("\n")
        found += [
            Text(str(path.relative_to(ROOT)), number, "prose", line) for number, line in enumerate(lines, 1)
        ]
    return tuple(found)


# Match if a name or prose contains a banned word: one search instead of one for each word.
ANY_NAME = re.compile(rf"(?<![\w-])(?:{'|'.join({**WORDS, **NAMES})})(?![\w-])", re.IGNORECASE)
ANY_WORD = re.compile(rf"(?<![\w-])(?:{'|'.join(WORDS)})(?![\w-])", re.IGNORECASE)


def split_name(name: str) -> str:
    """`NextPieceCounts_x` -> "next piece counts x"; WordPiece and SentencePiece are single words."""
    name = re.sub(r"(Word|Sentence)Piece", lambda match: match[0].capitalize(), name)
    return " ".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)).lower()


@cache
def has_banned_word(name: str) -> bool:
    """Return whether the words of a name contain a banned one. Most names occur many times."""
    return ANY_NAME.search(split_name(name)) is not None


def violations(text: Text) -> Iterator[str]:
    """Yield the banned words in a text, each with what to write instead."""
    is_name = text.kind == "name"
    if not (has_banned_word(text.text) if is_name else ANY_WORD.search(text.text)):
        return
    content = split_name(text.text) if is_name else text.text
    for pattern, instead in {**WORDS, **(NAMES if is_name else {})}.items():
        for match in re.finditer(rf"(?<![\w-])(?:{pattern})(?![\w-])", content, re.IGNORECASE):
            yield f"{text.path}:{text.line}: {match[0]!r} in {text.text.strip()!r}: write {instead}"


def korean_violations(line: str) -> Iterator[str]:
    """Yield other translations of a term, and sentences whose ending is not the polite 합니다."""
    for pattern, instead in KOREAN_WORDS.items():
        yield from (f"{match[0]!r}: write {instead}" for match in re.finditer(pattern, line))
    for match in re.finditer(r"\w*(?<!니)다\.(?=\s|\*|$)|\w*[요죠]\.(?=\s|\*|$)", line):
        yield f"{match[0]!r}: end the sentence with -ㅂ니다"


def korean_lines() -> Iterator[tuple[str, str]]:
    """Yield each line of prose of the Korean pages with its place; code and output are left out."""
    for path in (ROOT / "README.ko.md", *sorted((ROOT / "docs" / "ko").glob("*.md"))):
        text = re.sub(r"```.*?```|`[^`\n]+`", lambda match: "\n" * match[0].count("\n"),
                      path.read_text("utf-8"), flags=re.DOTALL)  # fmt: skip
        yield from ((f"{path.name}:{number}", line) for number, line in enumerate(text.split("\n"), 1))


def is_exception(text: Text) -> bool:
    return any(text.path == path and around in text.text for path, around in EXCEPTIONS)


@pytest.mark.slow
def test_no_banned_word_occurs():
    found = [problem for text in texts() for problem in violations(text) if not is_exception(text)]
    assert not found, f"{len(found)} banned words:\n" + "\n".join(found[:200])


def test_korean_pages_use_one_translation_and_the_polite_style():
    lines = list(korean_lines())
    assert len(lines) > 300
    assert [f"{place}: {problem}" for place, line in lines for problem in korean_violations(line)] == []


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("모델을 미세 조정합니다. 학습률은 정해져 있습니다.", 0),
        ("모델을 파인튜닝한다.", 2),
        ("라벨이 다릅니다", 1),
        ("좋아요. 그렇습니다.", 1),
    ],
)
def test_korean_terms_and_endings_are_found(line, count):
    assert len(list(korean_violations(line))) == count


@pytest.mark.slow
def test_exceptions_are_few_and_needed():
    assert len(EXCEPTIONS) <= 30
    for (path, around), reason in EXCEPTIONS.items():
        assert reason
        places = [text for text in texts() if text.path == path and around in text.text]
        assert any(any(violations(text)) for text in places), f"{path}: {around!r} is no longer needed"


@pytest.mark.parametrize(
    ("kind", "text", "count"),
    [
        ("prose", "a text of 128 pieces", 1),
        ("prose", "WordPiece tokens of a stand-in", 0),
        ("prose", "The rows are set aside and drawn by seed.", 2),
        ("prose", "goes on with the windows", 1),
        ("prose", "continues with the windows", 0),
        ("name", "PieceCounts", 1),
        ("name", "train_wordpiece", 0),
        ("name", "WordPieceTrainer", 0),
        ("name", "_was_told", 1),
        ("name", "threshold", 0),
    ],
)
def test_banned_words_are_found(kind, text, count):
    assert len(list(violations(Text("tests/x.py", 1, kind, text)))) == count
