"""Create the pictures of the page of `bertkit serve`; missing runs are trained first.

BERTKIT_DATA_DIR=DATA python tests/server_screenshots.py

Models for nli and qa learn too little from the samples, so they are trained on MNLI and SQuAD.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import chromium
from screenshots import PHONE, is_missing, save_picture

import bertkit

RUNS = Path("runs/screenshots-serve")
WIDTH = 900
SETTINGS: dict[str, dict[str, Any]] = {
    "classify": {"data": "sample", "epochs": 8},
    "nli": {"data": "mnli", "max_train_samples": 8000, "max_eval_samples": 500, "epochs": 2},
    "ner": {"data": "sample", "epochs": 12},
    "qa": {"squad": "v1", "max_train_samples": 2000, "max_eval_samples": 300, "epochs": 2},
    "swag": {"data": "sample", "epochs": 8},
}
# Texts of our own: no text of a dataset may be in a picture of the repository.
TEXTS: dict[str, list[str]] = {
    "classify": ["The plot is thin, but the two leads are a joy to watch, and the last scene is perfect."],
    "nli": ["A woman is repairing her bicycle in front of the house.", "The woman is asleep."],
    "ner": ["Maria Lopez moved from Lisbon to Berlin in May to work for Siemens."],
    "qa": [
        "Where does the ferry stop?",
        "The ferry leaves the harbor of Kiel at nine in the morning. It stops at Laboe for twenty minutes, "
        "and returns at noon.",
    ],
    "swag": [
        "Tom puts the kettle on the stove. He",
        "waits until the water boils.",
        "paints the kettle green.",
        "swims to the stove.",
        "forgets to wake up.",
    ],
}


def main() -> None:
    """Train the runs, and create a picture for each task, and one of a dark phone."""
    if reason := chromium.find_missing_dependency():
        raise SystemExit(f"no pictures: {reason}")
    for task in SETTINGS:
        train(task)
    with serve() as url, chromium.open_chromium() as driver:
        driver.implicitly_wait(20)
        for task in SETTINGS:
            chromium.set_viewport(driver, width=WIDTH)
            show_prediction(driver, url, task)
            chromium.set_viewport(driver, width=WIDTH, height=measure_height(driver))
            save_picture(driver, f"serve-{task}")
        chromium.set_viewport(driver, **PHONE, dark=True)
        show_prediction(driver, url, "ner")
        save_picture(driver, "serve-phone")


def train(task: str) -> None:
    """Train on the sample of a task."""
    if is_missing(RUNS / task):
        command = getattr(bertkit, task)
        command(model="minilm", output_dir=str(RUNS / task), overwrite=True, **SETTINGS[task])


@contextmanager
def serve() -> Iterator[str]:
    """Serve all runs, and yield the address."""
    runs = [str(RUNS / task) for task in SETTINGS]
    command = [sys.executable, "-m", "bertkit", "serve", *runs, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()


def show_prediction(driver: Any, url: str, task: str) -> None:
    """Predict the texts of a task on the page."""
    driver.get(url)
    find = driver.find_element
    find("xpath", f"//form[@id='form'][not(@hidden)]//option[.='{task}']").click()
    boxes = driver.find_elements("css selector", "#fields textarea")
    for box, text in zip(boxes, TEXTS[task], strict=False):
        chromium.type_text(driver, box, text)
    find("id", "predict").click()
    find("css selector", "#result > *")


def measure_height(driver: Any) -> int:
    """Return the height of the page down to the end of the prediction."""
    driver.execute_script("scrollTo(0, 0)")
    script = "return document.getElementById('result').getBoundingClientRect().bottom"
    return int(driver.execute_script(script)) + 16


if __name__ == "__main__":
    main()
