"""Create the pictures of the page of `bertkit serve`; missing runs are trained first, on the samples.

python tests/server_screenshots.py
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
DESKTOP = {"width": 900, "height": 700}
# Settings with which a model learns the sample of each task, and texts of our own.
SETTINGS: dict[str, dict[str, Any]] = {
    "classify": {"epochs": 8},
    "nli": {"epochs": 8},
    "ner": {"epochs": 12},
    "qa": {"epochs": 12},
    "swag": {"epochs": 8},
}
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
        "Tom puts the kettle on the stove.",
        "He waits until the water boils.\nHe paints the kettle green.\nHe swims to the stove.\n"
        "The stove sings a song.",
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
            chromium.set_viewport(driver, **DESKTOP)
            show_prediction(driver, url, task)
            save_picture(driver, f"serve-{task}")
        chromium.set_viewport(driver, **PHONE, dark=True)
        show_prediction(driver, url, "ner")
        save_picture(driver, "serve-phone")


def train(task: str) -> None:
    """Train on the sample of a task."""
    if is_missing(RUNS / task):
        command = getattr(bertkit, task)
        command(data="sample", model="minilm", output_dir=str(RUNS / task), overwrite=True, **SETTINGS[task])


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
    find("css selector", f"#form:not([hidden]) select[name=model] option[value={task}]").click()
    boxes = driver.find_elements("css selector", "#fields textarea")
    for box, text in zip(boxes, TEXTS[task], strict=False):
        box.send_keys(text)
    find("id", "predict").click()
    find("css selector", "#result > *")


if __name__ == "__main__":
    main()
