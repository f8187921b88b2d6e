"""Column files, and rows of tokens and tags, as `ner` reads them."""

import json

from conftest import make_ner_rows

from malformed.case import Case, expect_error, expect_rows, make_damage_cases

ROWS = make_ner_rows(20)
NUM_ROWS = len(ROWS)
SENTENCES = [
    "".join(f"{token}\t{tag}\n" for token, tag in zip(row["tokens"], row["tags"], strict=True))
    for row in ROWS
]
CONLL = "\n".join(SENTENCES) + "\n"
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
SPAN_ROW = {"tokens": "good food here", "tags": [[0, 4, "NICE"]]}


def replace_row(**change: object) -> str:
    """JSON lines whose third row has other columns."""
    return "".join(json.dumps(row | (change if at == 2 else {})) + "\n" for at, row in enumerate(ROWS))


def replace_spans(*spans: object) -> str:
    """Texts with spans in them, those of the second row as given."""
    rows = [SPAN_ROW | {"tokens": f"good food {at}"} for at in range(12)]
    rows[1]["tags"] = list(spans)
    return "".join(json.dumps(row) + "\n" for row in rows)


FILES = {
    "a column file": expect_rows(CONLL, NUM_ROWS),
    "blanks between columns": expect_rows(CONLL.replace("\t", " "), NUM_ROWS),
    "several blank lines between sentences": expect_rows(CONLL.replace("\n\n", "\n \n\n"), NUM_ROWS),
    "no line end at the end": expect_rows(CONLL.rstrip("\n"), NUM_ROWS),
    "cut within a line": expect_error(CONLL.rstrip("\n").rpartition("\t")[0] + "\n", "expected 2 columns, found 1"),
    "a line of three columns": expect_error(CONLL.replace("\t", "\tx\t", 1), "line 1", "expected 2 columns, found 3"),
    "a line without its tag": expect_error("lonely\n" + CONLL, "line 1", "found 1"),
    "a tag without its token": expect_rows(CONLL + "\n\tB-NICE\n", NUM_ROWS + 1),
    "an empty tag": expect_error(CONLL + "\nword\t\n", "is not a tag"),
    "invalid tags": expect_error(CONLL + "\nword\tnonsense\n", "'nonsense' is not a tag of"),
    "a tag of no type": expect_error(CONLL + "\nword\tB-\n", "'B-' is not a tag of"),
    "tags of two schemes": expect_error(CONLL + "\nword\tX-NICE\n", "'X-NICE' is not a tag of"),
    "an I without a B": expect_rows(CONLL + "\nword\tI-NICE\n", NUM_ROWS + 1),
    "all tags O": expect_error("a\tO\n\nb\tO\n\nc\tO\n", "all tags", "nothing to learn"),
    "tokens without tags": expect_error("a\n\nb\n\nc\n", "column"),
    "documents without sentences": expect_error("-DOCSTART- O\n\n-DOCSTART- O\n", "no words"),
    "comments without sentences": expect_error("# one\n# two\n", "one row"),
    "lines that end in CR alone": expect_error(CONLL.replace("\n", "\r"), "CR"),
    "a CSV file": expect_error("token,tag\ngood,B-NICE\nfood,O\n", "looks like CSV"),
    "one sentence": expect_error(SENTENCES[0], "one row", "--validation"),
    "a token that is a line separator": expect_rows(CONLL + "\n\u2028\tO\ngood\tB-NICE\n", NUM_ROWS + 1),
    "a token that is a blank beyond ASCII": expect_rows(CONLL + "\n\u3000\tO\ngood\tB-NICE\n", NUM_ROWS + 1),
    "a type that is markup": expect_rows(CONLL + "\nword\tB-[red]\n\nmore\tB-[red]\n", NUM_ROWS + 2),
    "ten thousand tokens in a sentence": expect_rows(CONLL + "\n" + "the\tO\n" * 10_000, NUM_ROWS + 1),
    "JSON lines": expect_rows(LINES, NUM_ROWS),
    "tokens that are a number": expect_error(replace_row(tokens=5), "row 3", "expected a list of words or a text"),
    "tokens that are null": expect_error(replace_row(tokens=None), "row 3", "is empty"),
    "tokens that are an object": expect_error(replace_row(tokens={"a": 1}), "row 3", "expected a list of words"),
    "a token that is a number": expect_error(replace_row(tokens=["a", 5], tags=["O", "O"]), "row 3", "word 2: 5 is not a text"),
    "a token that is null": expect_error(replace_row(tokens=[None], tags=["O"]), "row 3", "word 1: None is not a text"),
    "a token that is a list": expect_error(replace_row(tokens=[["a"]], tags=["O"]), "row 3", "word 1"),
    "an empty token": expect_rows(replace_row(tokens=["", "good"], tags=["O", "B-NICE"]), NUM_ROWS),
    "a token of half a surrogate pair": expect_rows(replace_row(tokens=["\ud83d"], tags=["O"]), NUM_ROWS),
    "no tokens": expect_rows(replace_row(tokens=[], tags=[]), NUM_ROWS - 1),
    "more tags than tokens": expect_error(replace_row(tags=["O"] * 99), "row 3", "99 tags"),
    "tags that are a text": expect_error(replace_row(tags="O O"), "row 3", "not a list of tags"),
    "tags that are null": expect_error(replace_row(tags=None), "row 3", "contains no tags"),
    "a tag that is null": expect_error(replace_row(tokens=["a"], tags=[None]), "row 3", "is not a tag"),
    "a tag that is a number": expect_error(replace_row(tokens=["a"], tags=[3]), "row 3", "number without a name"),
    "a tag that is a list": expect_error(replace_row(tokens=["a"], tags=[["O"]]), "row 3", "is not a tag"),
    "a tag of half a surrogate pair": expect_error(replace_row(tokens=["a"], tags=["B-\ud83d"]), "row 3", "surrogate"),
    "spans in texts": expect_rows(replace_spans([0, 4, "NICE"]), 12),
    "a span that is a number": expect_error(replace_spans(5), "row 2", "cannot parse span 5"),
    "a span without its end": expect_error(replace_spans([0, "NICE"]), "row 2", "cannot parse span"),
    "a span of texts": expect_error(replace_spans(["0", "4", "NICE"]), "row 2", "cannot parse span"),
    "a span of fractions": expect_error(replace_spans([0.5, 4, "NICE"]), "row 2", "cannot parse span"),
    "a span of true": expect_error(replace_spans([False, True, "NICE"]), "row 2", "cannot parse span"),
    "a span with null": expect_error(replace_spans({"start": None, "end": 4, "label": "NICE"}), "row 2", "cannot parse span"),
    "a span with an empty type": expect_error(replace_spans([0, 4, ""]), "row 2", "cannot parse span"),
    "a span with a type that is a list": expect_error(replace_spans([0, 4, ["NICE"]]), "row 2", "cannot parse span"),
    "a span beyond its text": expect_error(replace_spans([0, 99, "NICE"]), "row 2", "is not inside the text"),
    "a span before its text": expect_error(replace_spans([-2, 4, "NICE"]), "row 2", "is not inside the text"),
    "a span that ends before it begins": expect_error(replace_spans([4, 2, "NICE"]), "row 2", "is not inside the text"),
    "a span of a blank": expect_error(replace_spans([4, 5, "NICE"]), "row 2", "contains no word"),
    "spans that share a word": expect_error(replace_spans([0, 4, "NICE"], [2, 4, "MEAN"]), "row 2", "overlaps another span"),
    "a span of an endless number": expect_error(replace_spans([0, 10**30, "NICE"]), "row 2", "is not inside the text"),
}  # fmt: skip

CASES: dict[str, Case] = {**make_damage_cases(CONLL.encode(), NUM_ROWS), **FILES}
