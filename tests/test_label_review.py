"""The page to review label issues, in a real browser: keys, choices, the exported file, and hostile texts."""

import json
from pathlib import Path

import chromium
import msgspec
import pytest

from bertkit.commands.label_issues import render_review_page
from bertkit.run.load_data import LabelFix

pytestmark = [chromium.needs_browser, pytest.mark.slow]
SCRIPT = "</script><script>window.hacked = 1</script>"


@pytest.fixture
def show(shown):
    """Open a review page."""

    def show_review(issues, choices=(), task="classify", **screen):
        page = render_review_page("study <i>", task, 1000, issues, choices)
        return shown(page, "label_issues.html", **screen)

    return show_review


def make_issue(number, **more):
    return {
        "file": "train.csv", "row": number, "text": f"{number:016x}", "given": "negative",
        "suggested": "positive", "score": number / 100, "reason": "predicted positive (0.95)",
        "inputs": {"text": f"text {number} {SCRIPT}"},
    } | more  # fmt: skip


def press(driver, keys):
    driver.switch_to.active_element.send_keys(keys)


def get_selected(driver):
    """Return the location of the selected issue, which also has the focus."""
    [item] = driver.find_elements("css selector", "#issues > li[aria-current]")
    return item.find_element("css selector", ".id").text


def save(driver, tmp_path):
    """Press the key that saves the decisions, and return the lines of the file."""
    from selenium.webdriver.support.ui import WebDriverWait

    path = Path(tmp_path / "label_fixes.jsonl")
    path.unlink(missing_ok=True)
    press(driver, "s")
    WebDriverWait(driver, 10, poll_frequency=0.05).until(lambda _: path.exists() and path.stat().st_size)
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_keys_move_decide_and_save(show, tmp_path):
    driver = show([make_issue(number) for number in range(1, 6)], ["negative", "positive"])
    assert get_selected(driver) == "train.csv: row 1"
    press(driver, "1")
    assert get_selected(driver) == "train.csv: row 2"
    press(driver, "2")
    press(driver, "j")
    press(driver, "3")
    press(driver, "k")
    assert get_selected(driver) == "train.csv: row 4"
    press(driver, "0")
    press(driver, "\ue015")  # arrow down
    press(driver, "\ue013")  # arrow up
    assert get_selected(driver) == "train.csv: row 4"
    assert driver.find_element("id", "count").text == "5 of 5 issues, 2 decided"
    fixes = save(driver, tmp_path)
    assert fixes == [
        {"file": "train.csv", "row": 1, "text": f"{1:016x}", "action": "keep", "from": "negative",
         "to": None},
        {"file": "train.csv", "row": 2, "text": f"{2:016x}", "action": "change", "from": "negative",
         "to": "positive"},
    ]  # fmt: skip
    assert [msgspec.convert(fix, LabelFix).action for fix in fixes] == ["keep", "change"]


def test_decisions_survive_reloading_and_can_be_filtered(show):
    driver = show([make_issue(number) for number in range(1, 31)], ["negative", "positive"])
    press(driver, "3")
    driver.refresh()
    assert driver.find_element("id", "count").text == "30 of 30 issues, 1 decided"
    first = driver.find_element("css selector", "#issues > li")
    pressed = first.find_elements("css selector", "button[aria-pressed=true]")
    assert [button.get_attribute("name") for button in pressed] == ["drop"]
    driver.execute_script(
        "const field = document.forms.filters.show; field.value = 'open';"
        "field.dispatchEvent(new Event('input', { bubbles: true }))"
    )
    assert driver.find_element("id", "count").text == "29 of 30 issues, 1 decided"
    driver.find_element("name", "words").send_keys("text 17")
    assert driver.find_element("id", "count").text == "1 of 30 issues, 1 decided"


def test_another_label_can_be_chosen(show, tmp_path):
    issues = [make_issue(1, given="b", suggested="c"), make_issue(2, given="c", suggested="b")]
    driver = show(issues, ["a", "b", "c"])
    options = driver.find_elements("css selector", "#issues > li:first-child option")
    assert [option.text for option in options] == ["a", "c"]
    options[0].click()
    driver.find_element("css selector", "#issues > li:first-child button").send_keys("")
    driver.execute_script("document.activeElement.blur()")
    assert save(driver, tmp_path)[0]["to"] == "a"


def test_numbers_words_label_sets_and_answers(show, tmp_path):
    number = make_issue(1, given=0.5, suggested=3.25)
    driver = show([number])
    assert driver.find_element("name", "to").get_attribute("value") == "3.25"
    press(driver, "2")
    assert save(driver, tmp_path)[0]["to"] == 3.25
    word = make_issue(2, given="O", suggested="B-LOC", word=1, inputs={"tokens": ["in", "Seoul", "<b>"]})
    driver = show([word], ["O", "B-LOC", "I-LOC"], "ner")
    assert driver.find_element("css selector", "#issues mark").text == "Seoul"
    press(driver, "2")
    assert [save(driver, tmp_path)[0][key] for key in ("word", "from", "to")] == [1, "O", "B-LOC"]
    label = make_issue(3, given=False, suggested=True, label="sport")
    driver = show([label])
    head = driver.find_element("css selector", ".labels").text
    assert head.split()[:4] == ["label", "sport", "given", "absent"]
    press(driver, "2")
    assert [save(driver, tmp_path)[0][key] for key in ("label", "from", "to")] == ["sport", False, True]
    driver = show([make_issue(5, given=1, suggested=0, inputs={"endings": ["left", "slept"]})], task="swag")
    assert "0: left · 1: slept" in driver.find_element("id", "issues").text
    driver = show([make_issue(4, given=["Paris"], suggested="")], task="qa")
    buttons = driver.find_elements("css selector", ".decision button")
    assert [button.get_attribute("name") for button in buttons] == ["keep", "drop"]


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_the_page_without_horizontal_scrolling(show, dark):
    driver = show([make_issue(1), make_issue(2)], ["negative", "positive"], width=390, height=800, dark=dark)
    assert driver.execute_script("return document.documentElement.scrollWidth") == 390


def test_page_without_issues_says_so(show):
    driver = show([])
    assert "No label contradicts" in driver.find_element("id", "review").text


def test_a_large_page_is_shortened():
    issues = [make_issue(number, inputs={"text": f"{number} " + "word " * 400}) for number in range(4000)]
    page = render_review_page("study", "classify", 4000, issues, ["negative", "positive"])
    assert len(page) < 5_000_000
    assert "Long texts are shortened to" in page
