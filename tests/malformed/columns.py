"""Column files, and rows of tokens and tags, as `ner` reads them."""

import json

from conftest import ner_rows

from malformed.case import Case, damaged, legal, refused

ROWS = ner_rows(20)
N = len(ROWS)
SENTENCES = [
    "".join(f"{token}\t{tag}\n" for token, tag in zip(row["tokens"], row["tags"], strict=True))
    for row in ROWS
]
CONLL = "\n".join(SENTENCES) + "\n"
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
SPANS = {"tokens": "good food here", "tags": [[0, 4, "NICE"]]}


def with_row(**change: object) -> str:
    """JSON lines whose third row has other columns."""
    return "".join(json.dumps(row | (change if at == 2 else {})) + "\n" for at, row in enumerate(ROWS))


def with_spans(*spans: object) -> str:
    """Texts with spans in them, those of the second row as given."""
    rows = [SPANS | {"tokens": f"good food {at}"} for at in range(12)]
    rows[1]["tags"] = list(spans)
    return "".join(json.dumps(row) + "\n" for row in rows)


FILES = {
    "a column file": legal(CONLL, N),
    "blanks between columns": legal(CONLL.replace("\t", " "), N),
    "several blank lines between sentences": legal(CONLL.replace("\n\n", "\n \n\n"), N),
    "no line end at the end": legal(CONLL.rstrip("\n"), N),
    "cut within a line": refused(CONLL.rstrip("\n").rpartition("\t")[0] + "\n", "1 column where the file has 2"),
    "a line of three columns": refused(CONLL.replace("\t", "\tx\t", 1), "line 1", "3 columns where the file has 2"),
    "a line without its tag": refused("lonely\n" + CONLL, "line 1", "1 column"),
    "a tag without its token": legal(CONLL + "\n\tB-NICE\n", N + 1),
    "an empty tag": refused(CONLL + "\nword\t\n", "no tag"),
    "tags that are none": refused(CONLL + "\nword\tnonsense\n", "'nonsense' is no tag"),
    "a tag of no type": refused(CONLL + "\nword\tB-\n", "'B-' is no tag"),
    "tags of two schemes": refused(CONLL + "\nword\tX-NICE\n", "'X-NICE' is no tag"),
    "an I without a B": legal(CONLL + "\nword\tI-NICE\n", N + 1),
    "all tags O": refused("a\tO\n\nb\tO\n\nc\tO\n", "all tags", "nothing to learn"),
    "tokens without tags": refused("a\n\nb\n\nc\n", "column"),
    "documents without sentences": refused("-DOCSTART- O\n\n-DOCSTART- O\n", "no tokens"),
    "comments without sentences": refused("# one\n# two\n", "one row"),
    "lines that end in CR alone": refused(CONLL.replace("\n", "\r"), "CR"),
    "a CSV file": refused("token,tag\ngood,B-NICE\nfood,O\n", "looks like CSV"),
    "one sentence": refused(SENTENCES[0], "one row", "--validation"),
    "a token that is a line separator": legal(CONLL + "\n\u2028\tO\ngood\tB-NICE\n", N + 1),
    "a token that is a blank beyond ASCII": legal(CONLL + "\n\u3000\tO\ngood\tB-NICE\n", N + 1),
    "a type that is markup": legal(CONLL + "\nword\tB-[red]\n\nmore\tB-[red]\n", N + 2),
    "ten thousand tokens in a sentence": legal(CONLL + "\n" + "the\tO\n" * 10_000, N + 1),
    "JSON lines": legal(LINES, N),
    "tokens that are a number": refused(with_row(tokens=5), "row 3", "neither a list of tokens nor a text"),
    "tokens that are null": refused(with_row(tokens=None), "row 3", "holds nothing"),
    "tokens that are an object": refused(with_row(tokens={"a": 1}), "row 3", "neither"),
    "a token that is a number": refused(with_row(tokens=["a", 5], tags=["O", "O"]), "row 3", "token 2 is 5"),
    "a token that is null": refused(with_row(tokens=[None], tags=["O"]), "row 3", "token 1 is None"),
    "a token that is a list": refused(with_row(tokens=[["a"]], tags=["O"]), "row 3", "token 1"),
    "an empty token": legal(with_row(tokens=["", "good"], tags=["O", "B-NICE"]), N),
    "a token of half a surrogate pair": legal(with_row(tokens=["\ud83d"], tags=["O"]), N),
    "no tokens": legal(with_row(tokens=[], tags=[]), N - 1),
    "more tags than tokens": refused(with_row(tags=["O"] * 99), "row 3", "99 tags"),
    "tags that are a text": refused(with_row(tags="O O"), "row 3", "not a list of tags"),
    "tags that are null": refused(with_row(tags=None), "row 3", "no tags"),
    "a tag that is null": refused(with_row(tokens=["a"], tags=[None]), "row 3", "no tag"),
    "a tag that is a number": refused(with_row(tokens=["a"], tags=[3]), "row 3", "number that nothing names"),
    "a tag that is a list": refused(with_row(tokens=["a"], tags=[["O"]]), "row 3", "no tag"),
    "a tag of half a surrogate pair": refused(with_row(tokens=["a"], tags=["B-\ud83d"]), "row 3", "surrogate"),
    "spans in texts": legal(with_spans([0, 4, "NICE"]), 12),
    "a span that is a number": refused(with_spans(5), "row 2", "5 is no span"),
    "a span without its end": refused(with_spans([0, "NICE"]), "row 2", "no span"),
    "a span of texts": refused(with_spans(["0", "4", "NICE"]), "row 2", "no span"),
    "a span of fractions": refused(with_spans([0.5, 4, "NICE"]), "row 2", "no span"),
    "a span of true": refused(with_spans([False, True, "NICE"]), "row 2", "no span"),
    "a span with null": refused(with_spans({"start": None, "end": 4, "label": "NICE"}), "row 2", "no span"),
    "a span with an empty type": refused(with_spans([0, 4, ""]), "row 2", "no span"),
    "a span with a type that is a list": refused(with_spans([0, 4, ["NICE"]]), "row 2", "no span"),
    "a span beyond its text": refused(with_spans([0, 99, "NICE"]), "row 2", "does not lie in the text"),
    "a span before its text": refused(with_spans([-2, 4, "NICE"]), "row 2", "does not lie in the text"),
    "a span that ends before it begins": refused(with_spans([4, 2, "NICE"]), "row 2", "does not lie"),
    "a span of a blank": refused(with_spans([4, 5, "NICE"]), "row 2", "no word in the span"),
    "spans that share a word": refused(with_spans([0, 4, "NICE"], [2, 4, "MEAN"]), "row 2", "with another"),
    "a span of an endless number": refused(with_spans([0, 10**30, "NICE"]), "row 2", "does not lie"),
}  # fmt: skip

CASES: dict[str, Case] = {**damaged(CONLL.encode(), N), **FILES}
