"""Pages in a real browser: they render, filter, load nothing, and show hostile text as text."""

import chromium
import pytest
from conftest import write_rows
from test_report import labelled, write_run

from bertkit.commands.report import compare_runs
from bertkit.reports.page import render_page
from bertkit.tasks.view import load_finished_run

pytestmark = [pytest.mark.charts, pytest.mark.slow, chromium.needs_browser]
SCRIPT = "</script><script>window.hacked = 1</script>"
IMAGE = '<img src="http://localhost:9/x.png" onerror="window.hacked = 1">'
RIGHT_TO_LEFT = "abc \u202egood\u202c 'quoted' \"twice\" & שלום"
NAMES = (SCRIPT, "좋음", "$x^2$")


@pytest.fixture
def hostile(tmp_path):
    """Run of 90 examples in three classes with unusual names and texts; a third of them are wrong."""
    texts = [SCRIPT, IMAGE, RIGHT_TO_LEFT]
    records = [
        labelled(n, f"{n} {texts[n % 3]}", NAMES[n % 3], NAMES[(n + (n % 9 < 3)) % 3], 0.4 + n / 200, NAMES)
        for n in range(90)
    ]
    return load_finished_run(write_run(tmp_path / "run <i>&", records))


def rows(driver):
    """Return the examples that the page shows: their first line and their text."""
    items = driver.find_elements("css selector", "#examples > li")
    parts = (".labels", ".field")
    return [tuple(item.find_element("css selector", part).get_attribute("textContent") for part in parts)
            for item in items]  # fmt: skip


def choose(driver, **values):
    """Set filters and trigger the events of user input."""
    for name, value in values.items():
        driver.execute_script(
            "const field = document.forms.filters.elements[arguments[0]];"
            "if (field.type === 'checkbox') field.checked = arguments[1]; else field.value = arguments[1];"
            "field.dispatchEvent(new Event('input', { bubbles: true }))", name, value,
        )  # fmt: skip


def count(driver):
    return driver.find_element("id", "count").text


def test_hostile_text_is_shown_as_text_and_charts_are_rendered(shown, hostile):
    driver = shown(render_page(hostile))
    assert driver.find_element("tag name", "h1").text == "run <i>&"
    choose(driver, wrong=False, order="row")
    assert [text for _, text in rows(driver)[:3]] == [f"0 {SCRIPT}", f"1 {IMAGE}", f"2 {RIGHT_TO_LEFT}"]
    assert f"gold {SCRIPT}" in rows(driver)[0][0]
    assert len(driver.find_elements("css selector", "#examples img, #examples script")) == 0
    charts = driver.find_elements("css selector", "figure svg")
    assert len(charts) == 6  # confusion, F1, reliability; loss, accuracy, learning rate
    assert all(chart.size["height"] > 50 for chart in charts)
    assert "$x^2$" in charts[0].get_attribute("textContent")


def test_filters_combine_labels_confidence_and_words(shown, hostile):
    driver = shown(render_page(hostile))
    assert count(driver) == "30 of 90 examples"  # the errors
    choose(driver, wrong=False)
    assert count(driver) == "90 of 90 examples"
    choose(driver, gold="=좋음")
    assert count(driver) == "30 of 90 examples"
    choose(driver, predicted="=$x^2$")
    assert count(driver) == "10 of 90 examples"
    choose(driver, low="0.5", high="0.6")
    expected = [n for n in range(90) if n % 9 == 1 and 0.5 <= 0.4 + n / 200 <= 0.6]
    assert count(driver) == f"{len(expected)} of 90 examples"
    choose(driver, words="IMG onerror nowhere")
    assert count(driver) == "0 of 90 examples"
    choose(driver, words="IMG onerror", gold="", predicted="", low="", high="")
    assert count(driver) == "30 of 90 examples"


def test_examples_are_sorted_worst_first_and_paged(shown, hostile):
    driver = shown(render_page(hostile))
    first = [head for head, _ in rows(driver)]
    assert len(first) == 20
    assert first == sorted(first, key=lambda head: -float(head.split("confidence ")[1][:5]))
    driver.find_element("id", "next").click()
    assert len(rows(driver)) == 10
    assert driver.find_element("id", "shown-range").text == "21 to 30"
    assert driver.find_element("id", "next").get_attribute("disabled")


def test_a_click_on_a_confusion_cell_shows_its_examples(shown, hostile):
    driver = shown(render_page(hostile))
    cell = driver.find_element("css selector", "[id$='cell-1-2']")
    driver.execute_script("arguments[0].querySelector('path').dispatchEvent("
                          "new MouseEvent('click', { bubbles: true }))", cell)  # fmt: skip
    assert count(driver) == "10 of 90 examples"
    assert {head.split(" ")[1].split("predicted")[0] for head, _ in rows(driver)} == {"좋음"}


def test_marks_are_right_after_characters_outside_the_basic_plane(shown, tmp_path):
    text = "🎉🎉 Seoul 서울 here"
    entity = {"start": 9, "end": 11, "label": "<b>", "text": "서울", "score": 0.5}
    tokens = text.split()
    record = {"id": 0, "tokens": tokens, "text": text, "gold": ["O", "B-LOC", "I-LOC", "O"],
              "predicted": ["O", "O", "B-<b>", "O"], "entities": [entity]}  # fmt: skip
    folder = write_run(tmp_path / "run", [record], "ner", {"f1": 0.0})
    driver = shown(render_page(load_finished_run(folder)))
    marks = [mark.text for mark in driver.find_elements("css selector", "#examples mark")]
    assert marks == ["Seoul 서울LOC", "서울<b>"]


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_the_page_without_horizontal_scrolling(shown, hostile, dark):
    driver = shown(render_page(hostile), width=390, height=800, dark=dark)
    assert driver.execute_script("return document.documentElement.scrollWidth") == 390
    ink, paper = (
        driver.execute_script("return getComputedStyle(document.documentElement)[arguments[0]]", name)
        for name in ("color", "backgroundColor")
    )
    assert (brightness(ink) > brightness(paper)) == dark
    stroke = driver.execute_script("return getComputedStyle(document.querySelector('figure svg text')).fill")
    assert (brightness(stroke) > brightness(paper)) == dark


def brightness(color):
    """Return the sum of the channels of a color such as `rgb(1, 2, 3)`."""
    return sum(int(channel) for channel in color[color.index("(") + 1 : -1].split(",")[:3])


def test_the_theme_button_switches_to_dark(shown, hostile):
    driver = shown(render_page(hostile))
    before = driver.execute_script("return getComputedStyle(document.documentElement).backgroundColor")
    driver.find_element("id", "theme").click()
    after = driver.execute_script("return getComputedStyle(document.documentElement).backgroundColor")
    assert brightness(after) < brightness(before)


def test_a_comparison_filters_by_the_correct_runs(shown, tmp_path):
    pairs = [(n, f"text {n}", ("bad", "good")[n % 2]) for n in range(40)]
    first = write_run(tmp_path / "a <i>", [labelled(*row, "good") for row in pairs])
    second = write_run(tmp_path / "b", [labelled(*row, row[2]) for row in pairs])
    write_rows(second / "training_log.jsonl", [])
    text, _ = compare_runs([load_finished_run(first), load_finished_run(second)])
    driver = shown(text)
    choose(driver, predicted="=b", wrong=False)
    assert count(driver) == "20 of 40 examples"
    choose(driver, predicted="=all")
    assert count(driver) == "20 of 40 examples"
    fields = [field.text for field in driver.find_elements("css selector", "#examples li:first-child .field")]
    assert fields == ["texttext 1", "a <i>good", "bgood"]


def test_a_page_without_predictions_or_log_still_renders(shown, tmp_path):
    folder = write_run(tmp_path / "run", [])
    (folder / "training_log.jsonl").unlink()
    driver = shown(render_page(load_finished_run(folder)))
    assert driver.find_elements("id", "browser") == []
    assert "accuracy" in driver.find_element("id", "scores").text
