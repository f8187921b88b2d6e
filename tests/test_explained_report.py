"""`bertkit report --explain`: the attributions of words in the error browser of a run."""

import json
import shutil

import chromium
import pytest
from conftest import assert_refused, make_toy_rows
from test_browser import brightness
from test_calibrate import train_on_label_sets
from test_report import labelled, write_run

import bertkit
from bertkit.commands.configs import NUM_EXPLAINED
from bertkit.reports.page import ExampleExplanation, compute_strengths, render_page
from bertkit.tasks.view import Attribution, Example, Field, build_error_browser, load_finished_run


def read_examples(page):
    """Return the examples of a page, with a dictionary of words by column in place of their fields."""
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    for row in data["rows"]:
        row["text"] = data["texts"][row["fields"][0][1]]
        row["words"] = {
            data["texts"][name]: {data["texts"][text][start:end]: value for start, end, value, _ in rest[1]}
            for name, text, *rest in row["fields"]
            if len(rest) == 2
        }
    return data["rows"]


def explain(run, output="explained.html"):
    page = bertkit.report(runs=[str(run)], output=str(output), explain=True).path
    return read_examples(page.read_text("utf-8"))


@pytest.mark.slow
def test_the_worst_examples_have_the_attributions_of_predict(runs, monkeypatch):
    monkeypatch.setattr("bertkit.commands.report.NUM_EXPLAINED", 3)
    rows = explain(runs / "classify")
    assert [("explained" in row) for row in rows] == [True] * 3 + [False] * (len(rows) - 3)
    records = bertkit.predict(runs / "classify", text=[row["text"] for row in rows[:3]], explain=True)
    for row, record in zip(rows[:3], records, strict=True):
        assert row["explained"] == [
            record["predicted"],
            pytest.approx(record["completeness_error"], abs=1e-3),
        ]
        expected = {word["word"]: word["attribution"] for word in record["explanation"]}
        shown = row["words"]["text"]
        assert shown == pytest.approx({word: expected[word] for word in shown}, rel=0.01, abs=1e-6)
        assert max(expected, key=lambda word: abs(expected[word])) in shown


@pytest.mark.slow
def test_without_explain_the_page_has_no_attributions(runs):
    page = bertkit.report(runs=[str(runs / "classify")], output="plain.html").path.read_text("utf-8")
    rows = read_examples(page)
    assert rows
    assert not any("explained" in row or row["words"] for row in rows)
    assert "are shaded by their attribution" not in page


@pytest.mark.slow
def test_pairs_have_attributions_in_both_columns(runs):
    rows = explain(runs / "nli")
    assert len(rows) < NUM_EXPLAINED
    assert {column for row in rows for column in row["words"]} == {"premise", "hypothesis"}


@pytest.mark.slow
def test_label_sets_and_numbers_name_what_is_explained(tiny, tmp_path):
    train_on_label_sets(tiny, tmp_path)
    row = explain("run")[0]
    probabilities = load_finished_run(tmp_path / "run").records[row["row"]]["probabilities"]
    assert row["explained"][0] == max(probabilities, key=probabilities.get)
    rows = [{"text": row["text"], "label": 0.1 * len(row["text"])} for row in make_toy_rows(40)]
    bertkit.classify(data=rows, model=tiny, output_dir="numbers", max_steps=3, problem="regression")
    assert explain("numbers")[0]["explained"][0] == "the predicted number"


@pytest.mark.slow
def test_a_threshold_that_was_fitted_later_changes_no_explanation(runs, tmp_path):
    before = explain(runs / "classify")
    folder = shutil.copytree(runs / "classify", tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"bertkit_thresholds": {"positive": 0.0001}}))
    assert explain(folder) == before


@pytest.mark.slow
def test_a_text_column_whose_name_is_a_key_of_predictions(tiny):
    rows = [{"gold": row["text"], "label": row["label"]} for row in make_toy_rows(40)]
    bertkit.classify(data=rows, text_column="gold", model=tiny, output_dir="run", max_steps=3)
    assert set(explain("run")[0]["words"]) == {"input_gold"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["ner"], ["--explain", "is a run of ner", "pass a run of classify or nli"]),
        (["classify", "classify"], ["--explain", "explains a single run, not 2", "pass one of them"]),
    ],
)
def test_other_runs_are_refused(runs, cli, tmp_path, names, words):
    folders = [runs / name for name in names]
    assert_refused(cli, tmp_path, [*folders, "--explain", "-o", tmp_path / "x.html"], words, "report")


def test_weak_words_are_not_shaded():
    assert compute_strengths([2.0, -1.0, 0.1, 0.0]) == [1.0, -0.5, 0.0, 0.0]
    assert compute_strengths([0.0]) == [0.0]
    assert compute_strengths([]) == []


def test_a_text_is_shortened_with_its_attributions():
    words = [Attribution(0, 5, 0.5, 1.0), Attribution(4000, 4005, 0.4, 0.8)]
    examples = [
        Example(n, [], [], None, None, 0.0, [Field("text", f"{n:05}" + "a" * 5000, [], words)])
        for n in range(2000)
    ]
    data = json.loads(build_error_browser(examples, "", ("", "")).data)
    [_, text, marks, attributions] = data["rows"][0]["fields"][0]
    assert (marks, attributions) == ([], [[0, 5, 0.5, 1.0]])
    assert len(data["texts"][text]) < 3100


@pytest.fixture
def explained(tmp_path):
    """A page of two examples; the worst one is explained, and its text has characters of four bytes."""
    records = [labelled(0, "🎉 dull <b> but warm", "bad", "good"), labelled(1, "fine", "good", "good")]
    words = [Attribution(2, 6, -0.75, -0.6), Attribution(15, 19, 1.5, 1.0)]
    explanation = ExampleExplanation("good", 0.012, {"text": words})
    return render_page(load_finished_run(write_run(tmp_path / "run", records)), {0: explanation})


@chromium.needs_browser
def test_words_are_shaded_and_listed_in_a_table(shown, explained):
    driver = shown(explained)
    shaded = driver.find_elements("css selector", "#examples .attribution")
    assert [(word.text, word.get_attribute("class").split()[1]) for word in shaded] == [
        ("dull", "lowers"), ("warm", "raises"),
    ]  # fmt: skip
    driver.find_element("css selector", "#examples summary").click()
    cells = driver.find_elements("css selector", "#examples tbody td")
    assert [cell.text for cell in cells] == ["warm", "+1.5", "dull", "−0.75"]
    assert driver.find_element("css selector", "#examples summary").text == "attributions to good"
    assert driver.find_element("css selector", "#examples caption").text == "completeness error 1.2 %"
    headings = driver.find_elements("css selector", "#examples th")
    assert [(head.text, head.get_attribute("scope")) for head in headings] == [
        ("word", "col"), ("attribution", "col"),
    ]  # fmt: skip


@chromium.needs_browser
@pytest.mark.parametrize("dark", [False, True])
def test_shaded_words_are_readable_without_color(shown, explained, dark):
    driver = shown(explained, width=390, height=800, dark=dark)
    assert driver.execute_script("return document.documentElement.scrollWidth") == 390
    styles = driver.execute_script("""
        return [...document.querySelectorAll("#examples .attribution")].map((word) => {
            word.style.setProperty("--strength", "100%");
            const canvas = new OffscreenCanvas(1, 1).getContext("2d"), style = getComputedStyle(word);
            canvas.fillStyle = style.backgroundColor;
            canvas.fillRect(0, 0, 1, 1);
            const [...channels] = canvas.getImageData(0, 0, 1, 1).data;
            return [style.color, channels.slice(0, 3), style.textDecorationLine];
        })""")
    assert {decoration for *_, decoration in styles} == {"none", "underline"}
    for ink, channels, _ in styles:
        paper = f"rgb({', '.join(map(str, channels))})"
        assert (brightness(ink) > brightness(paper)) == dark
        assert compute_contrast(ink, paper) >= 4.5  # WCAG 2, level AA


def compute_contrast(*colors):
    """Return the contrast ratio of two colors (WCAG 2, relative luminance)."""
    low, high = sorted(map(compute_luminance, colors))
    return (high + 0.05) / (low + 0.05)


def compute_luminance(color):
    channels = [int(channel) / 255 for channel in color[color.index("(") + 1 : -1].split(",")[:3]]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
