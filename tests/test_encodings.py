"""Data files in other encodings than UTF-8: settings, byte order marks, and the encodings that would fit."""

import codecs
import gzip
import io
import json
import re
import tracemalloc

import pytest
import yaml
from conftest import assert_refused, make_ner_rows, make_toy_rows, write_rows

import bertkit
from bertkit.data.readers import text_files
from bertkit.data.readers.formats import Dialect, read_file, stream_rows
from bertkit.data.readers.text_files import (
    CHUNK_BYTES,
    Decoding,
    StandardInput,
    decode_chunks,
    find_encodings,
    read_chunks,
    read_text,
)
from bertkit.data.sources import SplitFile, load_dataset, read_layout
from bertkit.errors import UserError

KOREAN = [
    {"text": "이 영화 정말 재미있어요, 꼭 보세요", "label": "긍정"},
    {"text": "배우들의 연기가 별로였다", "label": "부정"},
    {"text": "good sound, poor story", "label": "부정"},
]
# One text in the language that each encoding is made for.
TEXTS = {
    "cp949": "text,label\n이 영화 정말 재미있어요,긍정\n배우 연기가 별로였다,부정\n",
    "euc_kr": "text,label\n다시 보고 싶은 작품이에요,긍정\n시간이 아까웠습니다,부정\n",
    "shift_jis": "text,label\nこの映画はとても面白かった,良い\n退屈で眠くなりました,悪い\n",
    "euc_jp": "text,label\nもう一度見たい作品です,良い\n話が長すぎて疲れました,悪い\n",
    "gb18030": "text,label\n这部电影非常精彩,好评\n剧情拖沓，浪费时间,差评\n",
    "big5": "text,label\n這部電影非常精彩,好評\n演員的表演讓人感動,好評\n",
    "cp1252": "text,label\nTrès émouvant, à voir,bien\nDécevant et long,mal\n",
    "cp1250": "text,label\nŚwietny film na wieczór,tak\nMiał być śmieszny, a jest żałośnie nudny,nie\n",
    "cp1251": "text,label\nОчень хороший фильм,хорошо\nСкучно и долго,плохо\n",
    "cp1253": "text,label\nΠολύ καλή ταινία για όλους,ναι\nΒαρετή και μεγάλη,όχι\n",
    "cp1255": "text,label\nסרט מצוין לכל המשפחה,כן\nמשעמם וארוך מדי,לא\n",
    "cp1256": "text,label\nفيلم رائع جدا,نعم\nممل وطويل,لا\n",
}
WITH_MARK = {
    "UTF-8": codecs.BOM_UTF8 + "é한\n".encode(),
    "UTF-16 LE": codecs.BOM_UTF16_LE + "é한\n".encode("utf-16-le"),
    "UTF-16 BE": codecs.BOM_UTF16_BE + "é한\n".encode("utf-16-be"),
    "UTF-32 LE": codecs.BOM_UTF32_LE + "é한\n".encode("utf-32-le"),
    "UTF-32 BE": codecs.BOM_UTF32_BE + "é한\n".encode("utf-32-be"),
}


def format_csv(rows):
    """Return rows as CSV with quotes."""
    lines = [",".join(f'"{value}"' for value in row.values()) for row in rows]
    return "\n".join(["text,label", *lines]) + "\n"


FORMATS = {
    "csv": format_csv(KOREAN),
    "tsv": "text\tlabel\n" + "".join(f"{row['text']}\t{row['label']}\n" for row in KOREAN),
    "jsonl": "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in KOREAN),
    "json": json.dumps(KOREAN, ensure_ascii=False, indent=1),
}
CONLL = "서울 B-LOC\n에 O\n\nIn O\nÉvian O\n"


# ---- reading


@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("encoding", ["cp949", "euc_kr", "utf-8", "utf-16-le", "utf-16", "utf-8-sig"])
@pytest.mark.parametrize("name", FORMATS)
def test_rows_are_the_same_in_every_encoding_and_format(tmp_path, name, encoding, compress):
    path = tmp_path / f"data.{name}"
    path.write_bytes(compress(FORMATS[name].encode(encoding)))
    assert list(read_file(path, Dialect(encoding=encoding))) == KOREAN
    chunks = stream_rows(path, Dialect(encoding=encoding), chunk_size=1, stream_above_bytes=0)
    assert [row for rows in chunks for row in rows] == KOREAN


@pytest.mark.parametrize("encoding", ["utf-16", "cp1250", "johab"])
def test_conll_files_are_read_in_the_given_encoding(tmp_path, encoding):
    content = CONLL if encoding == "utf-16" else CONLL.replace("É", "E")
    content = content.replace("서울", "Łódź") if encoding == "cp1250" else content
    content = content.replace("에", "w") if encoding == "cp1250" else content
    path = tmp_path / "words.conll"
    path.write_bytes(content.encode(encoding))
    expected = [line.split(" ")[0] for line in content.split("\n") if line]
    rows = read_file(path, Dialect(conll=True, encoding=encoding))
    assert [word for words in rows["0"] for word in words] == expected


@pytest.mark.parametrize("name", WITH_MARK)
def test_the_byte_order_mark_decides(tmp_path, name):
    path = tmp_path / "text.txt"
    path.write_bytes(WITH_MARK[name])
    assert "".join(read_text(path, Decoding())) == "é한\n"
    single_bytes = (WITH_MARK[name][i : i + 1] for i in range(len(WITH_MARK[name])))
    assert "".join(decode_chunks("text", single_bytes, Decoding())) == "é한\n"


def test_excel_saves_unicode_text_as_utf_16_with_tabs(tmp_path):
    path = tmp_path / "excel.txt"
    path.write_bytes(codecs.BOM_UTF16_LE + FORMATS["tsv"].replace("\n", "\r\n").encode("utf-16-le"))
    assert list(read_file(path)) == KOREAN


def test_class_folders_and_layouts_use_the_encoding(tmp_path):
    for split in ("train", "test"):
        for label in ("neg", "pos"):
            (tmp_path / split / label).mkdir(parents=True)
            (tmp_path / split / label / "1.txt").write_text(f"한글 {label}", "cp949")
    splits = load_dataset(str(tmp_path), "classify", dialect=Dialect(encoding="cp949")).splits
    assert splits["test"]["text"] == ["한글 neg", "한글 pos"]
    layout = {"train": SplitFile(file="train", class_folders={"pos": "good"})}
    assert read_layout(tmp_path, layout, "cp949")[0]["train"]["text"] == ["한글 pos"]


def test_the_user_overrides_the_encoding_of_a_layout(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("좋다 O\n", "cp949")
    layout = {
        "train": SplitFile(file="words.txt", conll=True, fallback_encoding="cp1252", columns={"0": "words"})
    }
    assert read_layout(tmp_path, layout)[0]["train"]["words"] == [["ÁÁ´Ù"]]
    assert read_layout(tmp_path, layout, "cp949")[0]["train"]["words"] == [["좋다"]]


def test_parquet_ignores_the_encoding(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(KOREAN), tmp_path / "data.parquet")
    assert list(read_file(tmp_path / "data.parquet", Dialect(encoding="cp949"))) == KOREAN


@pytest.mark.slow
def test_decoding_uses_bounded_memory(tmp_path, monkeypatch):
    chunk_bytes = CHUNK_BYTES // 8
    monkeypatch.setattr("bertkit.data.readers.text_files.CHUNK_BYTES", chunk_bytes)
    path = tmp_path / "large.csv"
    path.write_bytes(("text,label\n" + "좋은 영화,긍정\n" * 125_000).encode("utf-16"))
    assert path.stat().st_size > 15 * chunk_bytes
    tracemalloc.start()
    try:
        chunks = stream_rows(path, chunk_size=100)
        assert sum(map(len, (next(chunks) for _ in range(375)))) == 37_500
        assert tracemalloc.get_traced_memory()[1] < path.stat().st_size
    finally:
        tracemalloc.stop()


# ---- errors


@pytest.mark.parametrize("split", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize(
    ("encoding", "content", "line", "offset"),
    [
        (None, codecs.BOM_UTF16_LE + "Ċਊ\nab\n".encode("utf-16-le") + b"x", 3, 14),
        (None, codecs.BOM_UTF16_BE + "a\nb".encode("utf-16-be") + b"\xd8\x00\0a", 2, 8),
        (None, "é\n한\n".encode() + b"\xe9 \n", 3, 7),
        ("cp949", "한글\n한".encode("cp949") + b"\xc7", 2, 7),
        ("cp949", "한\n한글".encode("cp949") + b"\xff\n", 2, 7),
        ("gb18030", "a\n𠀀\n".encode("gb18030") + b"\xff", 3, 7),
    ],
)
def test_decoding_errors_name_the_line_and_the_byte(encoding, content, line, offset, split):
    chunks = (content[i : i + split] for i in range(0, len(content), split))
    codec = (encoding or ("utf-16" if content[:1] in b"\xff\xfe" else "utf-8")).upper()
    message = f"x: line {line}: not {codec} (byte 0x{content[offset]:02x} at offset {offset})"
    with pytest.raises(UserError, match=re.escape(message)):
        list(decode_chunks("x", chunks, Decoding(encoding)))


def test_utf_16_without_its_mark_needs_the_byte_order(tmp_path):
    path = tmp_path / "data.csv"
    path.write_bytes(TEXTS["cp949"].encode("utf-16-be"))
    for dialect, problem in ((None, "zero byte at offset 0"), (Dialect(encoding="utf-16"), "not UTF-16")):
        with pytest.raises(UserError, match=f'{problem}.*--encoding NAME.*utf-16-be: "이 영화 정말') as error:
            read_file(path, dialect)
        assert "\n" not in str(error.value)
    assert len(read_file(path, Dialect(encoding="utf-16-be"))) == 2


def test_utf_16_for_a_file_without_its_mark_suggests_other_encodings(tmp_path):
    path = tmp_path / "data.csv"
    path.write_bytes(b"ab" + b"\x00\xdc" + TEXTS["cp949"].encode("cp949"))  # a lone surrogate in UTF-16
    with pytest.raises(UserError, match=r"data.csv: not UTF-16 .UTF-16 stream does not start") as error:
        read_file(path, Dialect(encoding="utf-16"))
    assert "\n" not in str(error.value)


def test_a_single_byte_encoding_does_not_hide_zero_bytes(tmp_path):
    path = tmp_path / "data.csv"
    path.write_bytes(WITH_MARK["UTF-16 LE"])
    with pytest.raises(UserError, match=r"line 1: not CP1256 .a NUL character.*utf-16"):
        read_file(path, Dialect(encoding="cp1256"))


@pytest.mark.parametrize("encoding", TEXTS)
def test_the_error_lists_the_right_encoding_first(tmp_path, encoding):
    path = tmp_path / "data.csv"
    path.write_bytes(TEXTS[encoding].encode(encoding))
    with pytest.raises(UserError) as error:
        read_file(path)
    message = str(error.value)
    name = "cp949" if encoding == "euc_kr" else encoding  # cp949 extends euc_kr
    assert "data.csv: line 2: not UTF-8 (byte 0x" in message
    sample = TEXTS[encoding].split("\n")[1]
    assert f'; pass --encoding NAME, with one of these: {name}: "{sample}"' in message
    assert len(message) < 500
    assert message.isprintable()


def test_only_encodings_that_decode_the_whole_file_are_listed(tmp_path):
    path = tmp_path / "data.csv"
    path.write_bytes(TEXTS["cp949"].encode("cp949") * 20_000 + "똠,긍정\n".encode("cp949"))
    assert path.stat().st_size > CHUNK_BYTES
    names = [candidate.encoding for candidate in find_encodings(lambda: read_chunks(path))]
    assert names[0] == "cp949"
    assert "euc_kr" not in names
    for name in names:
        path.read_bytes().decode(name)


def test_each_text_is_listed_once():
    found = find_encodings(lambda: ["Ein schöner Tag, über alle Maße\n".encode("cp1252")])
    assert found[0].encoding == "cp1252"
    assert "cp1250" not in [candidate.encoding for candidate in found]  # it gives the same text
    assert len(found) <= text_files.MAX_CANDIDATES


@pytest.mark.parametrize(
    "text", ["it’s", "“Good” film – really", "It costs £5 or 5 €", "a café, an été", "Größe: 5 °C"]
)
def test_short_western_texts_are_not_taken_for_east_asian_ones(text):
    [first, *others] = find_encodings(lambda: [text.encode("cp1252")])
    assert (first.encoding, first.sample) == ("cp1252", text)
    assert all(other.encoding.startswith("cp125") for other in others)


def test_a_wrong_encoding_is_refused_with_the_right_ones(tmp_path):
    path = tmp_path / "data.csv"
    path.write_bytes(TEXTS["gb18030"].encode())
    with pytest.raises(
        UserError, match=r"line 2: not SHIFT_JIS \(byte 0x.. at .*these: utf-8: \"这部电影非常精彩,好评"
    ):
        read_file(path, Dialect(encoding="shift_jis"))


def test_binary_data_has_no_encoding(tmp_path):
    path = tmp_path / "data.csv"
    path.write_bytes(bytes(range(1, 256)) * 20)
    with pytest.raises(UserError, match=r"not UTF-8 .*; check how it was written: no common encoding"):
        read_file(path)


def test_standard_input_is_read_once():
    stdin = StandardInput(io.BytesIO("좋다\n".encode("cp949")))
    with pytest.raises(UserError, match=r"standard input: line 1: .*; pass --encoding NAME$"):
        list(read_text(stdin, Decoding()))


# ---- commands


def write_cp949_rows(path, rows):
    """Write rows as CSV in cp949."""
    path.write_bytes(format_csv(rows).encode("cp949"))
    return path


def make_korean_rows(count, seed=0):
    """Return toy rows in which a Korean word comes before each text."""
    return [{**row, "text": f"영화 {row['text']}"} for row in make_toy_rows(count, seed)]


@pytest.fixture(scope="module")
def korean_run(tiny, tmp_path_factory):
    """A run on a file in cp949, with validation rows in cp949."""
    folder = tmp_path_factory.mktemp("korean")
    return bertkit.classify(
        data=str(write_cp949_rows(folder / "train.csv", make_korean_rows(40))),
        validation=str(write_cp949_rows(folder / "dev.csv", make_korean_rows(10, seed=1))),
        encoding="cp949", model=str(tiny), max_steps=2, batch_size=4, output_dir=str(folder / "run"),
    )  # fmt: skip


@pytest.mark.slow
def test_a_run_is_trained_and_evaluated_in_its_encoding(korean_run, cli, tmp_path):
    records = (korean_run.output_dir / "predictions.jsonl").read_text("utf-8").splitlines()
    assert all(json.loads(record)["text"].startswith("영화 ") for record in records)
    settings = yaml.safe_load((korean_run.output_dir / "run.yaml").read_text("utf-8"))["settings"]
    assert settings["encoding"] == "cp949"
    status, out, err = cli("evaluate", korean_run.output_dir, "-o", tmp_path / "again", "--json")
    assert status == 0, err
    assert json.loads(out)["validation"] == pytest.approx(korean_run.metrics["validation"])


@pytest.mark.slow
def test_new_data_has_its_own_encoding(korean_run, cli, tmp_path):
    rows = make_korean_rows(10, seed=2)
    utf8 = write_rows(tmp_path / "utf8.jsonl", rows)
    cp949 = write_cp949_rows(tmp_path / "cp949.csv", rows)
    scores = []
    for args in (["--data", utf8], ["--data", cp949, "--encoding", "cp949"]):
        output_dir = tmp_path / f"scored{len(scores)}"
        status, out, err = cli("evaluate", korean_run.output_dir, *args, "-o", output_dir, "--json")
        assert status == 0, err
        scores.append(json.loads(out)["validation"])
    assert scores[0] == scores[1]
    args = ["evaluate", korean_run.output_dir, "--encoding", "cp949"]
    status, _, err = cli(*args)
    assert (status, "applies only to --data" in err) == (2, True)


@pytest.mark.parametrize("name", ["rows.csv", "lines.txt", None])
def test_predict_reads_files_and_standard_input(korean_run, cli, tmp_path, name, monkeypatch):
    texts = ["영화 정말 좋다", "지루하다"]
    lines = ("" if name == "lines.txt" or name is None else "text\n") + "\n".join(texts) + "\n"
    args = ["predict", korean_run.output_dir, "--encoding", "cp949", "--format", "jsonl"]
    if name:
        (tmp_path / name).write_text(lines, "cp949")
        args += ["--data", tmp_path / name]
    else:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode("cp949"))))
    status, out, err = cli(*args)
    assert status == 0, err
    assert [json.loads(line)["text"] for line in out.splitlines()] == texts


@pytest.mark.slow
def test_embed_reads_the_encoding(tiny, cli, tmp_path):
    for encoding in ("utf-8", "cp949"):
        (tmp_path / f"{encoding}.csv").write_text("text\n영화 정말 좋다\n지루하다\n", encoding)
        args = ["embed", tiny, "--data", tmp_path / f"{encoding}.csv", "--encoding", encoding]
        status, _, err = cli(*args, "-o", tmp_path / f"{encoding}.npy")
        assert status == 0, err
    assert (tmp_path / "utf-8.npy").read_bytes() == (tmp_path / "cp949.npy").read_bytes()


@pytest.mark.slow
def test_check_and_ner_read_the_encoding(tiny, cli, tmp_path):
    rows = make_ner_rows(30)
    lines = [
        "\n".join(f"{word} {tag}" for word, tag in zip(row["tokens"], row["tags"], strict=True))
        for row in rows
    ]
    data = tmp_path / "words.conll"
    data.write_bytes(("서울 O\n\n" + "\n\n".join(lines) + "\n").encode("cp949"))
    assert_refused(cli, tmp_path, ["--data", data, "--model", tiny], ["line 1", 'cp949: "서울 O"'], "ner")
    status, out, err = cli("check", "ner", "--data", data, "--model", tiny, "--encoding", "cp949")
    assert status == 0, err + out


def test_pretraining_reads_utf_16_and_names_the_encodings(cli, tmp_path):
    sentences = [f"좋은 영화 {number} 입니다." for number in range(40)]
    path = tmp_path / "text.txt"
    path.write_text("\n".join(sentences), "utf-16")
    args = ["train-tokenizer", "--data", path, "--vocab-size", 60, "-o", tmp_path / "tok"]
    assert cli(*args)[0] == 0
    assert "영" in (tmp_path / "tok" / "vocab.txt").read_text("utf-8").splitlines()
    path.write_text("\n".join(sentences), "cp949")
    status, _, err = cli(*args, "--overwrite")
    assert status == 2
    assert '--encoding-errors skip, or pass --encoding NAME, with one of these: cp949: "좋은 영화 0' in err


@pytest.mark.parametrize("command", ["classify", "nli", "ner", "qa", "swag", "pretrain-mlm-nsp", "glue"])
def test_an_unknown_encoding_is_an_error_before_any_reading(cli, tmp_path, command):
    args = [
        "--encoding",
        "utf-99",
        *([] if command == "glue" else ["--data", tmp_path / "does-not-exist.csv"]),
    ]
    assert_refused(cli, tmp_path, args, ["--encoding utf-99: no such encoding"], command)


def test_a_recipe_sets_the_encoding(cli, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("task: classify\nsettings: {encoding: nonsense, data: x.csv}\n")
    assert_refused(cli, tmp_path, ["--recipe", recipe], ["recipe.yaml: encoding nonsense: no such encoding"])
    with pytest.raises(UserError, match=r"predict\(\): encoding undefined: no such encoding"):
        bertkit.predict("run", encoding="undefined")


@pytest.mark.slow
def test_known_text_is_decoded_once(tiny, cli, tmp_path, monkeypatch):
    (tmp_path / "data" / "cola").mkdir(parents=True)
    lines = [f"x\t{number % 2}\t\tun café {number}" for number in range(40)]
    (tmp_path / "data" / "cola" / "train.tsv").write_text("\n".join(lines), "cp1252")
    monkeypatch.setenv("BERTKIT_DATA_DIR", str(tmp_path / "data"))
    for data in ("cola", "sample"):
        args = ["--data", data, "--tokenizer", tiny, "--size", "tiny", "--max-length", 16, "--preview", 2]
        status, out, err = cli("pretrain-mlm-nsp", *args, "--encoding", "cp1252", "--json")
        assert status == 0, err
        assert "Ã" not in out + err
    args = ["train-tokenizer", "--data", "cola", "--vocab-size", 40, "-o", tmp_path / "tok", "--cased"]
    assert cli(*args, "--encoding", "cp1252")[0] == 0
    assert {"é", "##é"} & set((tmp_path / "tok" / "vocab.txt").read_text("utf-8").splitlines())
