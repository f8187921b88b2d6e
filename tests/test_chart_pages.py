"""The pages of studies and of calibrated runs in a real browser: all text of a chart is visible."""

import json

import chromium
import numpy as np
import pytest
from test_report import labelled, write_run

from bertkit.reports.page import render_page
from bertkit.reports.tables import ResultTable, build_study_charts, render_experiment_page
from bertkit.tasks.view import load_finished_run

pytestmark = [pytest.mark.charts, pytest.mark.slow, chromium.needs_browser]
FIND_CLIPPED_TEXTS = """
    return [...document.querySelectorAll("figure svg")].flatMap((svg) => {
        const frame = svg.getBoundingClientRect();
        return [...svg.querySelectorAll("text")].filter((text) => {
            const box = text.getBoundingClientRect();
            return box.left < frame.left - 1 || box.right > frame.right + 1 ||
                box.top < frame.top - 1 || box.bottom > frame.bottom + 1;
        }).map((text) => `${svg.getAttribute("aria-label")}: ${text.textContent}`);
    })"""


def make_trial(number):
    settings = {"learning_rate": 10 ** -(3 + number / 3), "lr_scheduler": ["linear", "cosine"][number % 2]}
    state = ["complete", "pruned"][number % 3 == 2]
    return {"trial": number, "settings": settings, "state": state, "score": 0.5 + number / 20, "seconds": 9.0}


@pytest.fixture(scope="module")
def study_page():
    """A study of two settings, with scores that have long tick labels."""
    runs = [{"fold": fold, "seed": 0, "score": 0.7812 + fold / 10_000} for fold in range(3)]
    search = {
        "trials": 8, "table": [make_trial(number) for number in range(8)], "best_trial": 6, "best_score": 0.8,
        "space": {"learning_rate": "1e-6..1e-3:log", "lr_scheduler": "linear,cosine"},
        "default_settings": {"learning_rate": 1e-4, "lr_scheduler": "linear"},
    }  # fmt: skip
    metrics = {
        "task": "study", "command": "classify", "data": {"name": "toy", "train": 90}, "model": "tiny",
        "metric": "accuracy", "folds": 3, "seeds": [0], "search": search,
        "settings": {"best": {"runs": runs}},
    }  # fmt: skip
    table = ResultTable("study", ["settings", "runs"], [["best", "3"]], "Score: accuracy.", [])
    return render_experiment_page(
        metrics, {"Scores": table}, ["no difference shown"], build_study_charts(metrics)
    )


@pytest.fixture
def calibrated_page(tmp_path):
    """A calibrated run, whose risk has long tick labels."""
    folder = write_run(tmp_path / "run", [labelled(n, f"text {n}", "good", "good") for n in range(9)])
    coverage = np.linspace(0.05, 1, 20)
    reliability = {
        "count": [0] * 14 + [1234],
        "confidence": [None] * 14 + [0.9],
        "accuracy": [None] * 14 + [0.8],
    }
    calibration = {
        "data": {"rows": 1234}, "reliability": {"before": reliability, "after": reliability},
        "risk_coverage": {"coverage": list(coverage), "risk": list(coverage / 7), "aurc": 0.07,
                          "min_confidence": list(1 - coverage / 2)},
        "abstention": {"min_confidence": 0.6},
        "threshold": {"thresholds": {"good": 0.4}, "curve": {
            "threshold": list(coverage), "positive_f1": list(coverage), "positive_recall": list(1 - coverage),
        }},
    }  # fmt: skip
    (folder / "calibration.json").write_text(json.dumps(calibration))
    return render_page(load_finished_run(folder))


def check_page(driver, titles):
    shown = [title.text for title in driver.find_elements("css selector", "figure h3")]
    assert [title for title in titles if title not in shown] == []
    assert driver.execute_script(FIND_CLIPPED_TEXTS) == []
    width, scroll_width = driver.execute_script("return [innerWidth, document.documentElement.scrollWidth]")
    assert scroll_width == width


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_of_a_study(shown, study_page, width):
    titles = ["Trials in order", "Effect of learning_rate", "Effect of lr_scheduler", "Parallel coordinates"]
    driver = shown(study_page, width=width, dark=width == 390)
    check_page(driver, [*titles, "Score against time", "Final runs by fold"])
    texts = driver.find_elements("css selector", "svg[aria-label='Parallel coordinates'] text")
    ends = {"4.64e-06", "0.001", "linear", "cosine", "0.5", "0.85"}
    assert ends <= {text.get_attribute("textContent").strip() for text in texts}
    assert "No difference shown." in driver.find_element("id", "scores").text


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_of_a_calibrated_run(shown, calibrated_page, width):
    driver = shown(calibrated_page, width=width, dark=width == 390)
    check_page(driver, ["Risk and coverage: AURC 0.070", "Scores by threshold"])
    driver.find_elements("css selector", "#results summary")[-1].click()
    cells = driver.find_elements("css selector", "#results details[open] th")
    assert [cell.text for cell in cells] == ["threshold", "positive_f1", "positive_recall"]
