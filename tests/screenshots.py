"""Create the pictures of pages in the documentation; missing runs are trained first.

python tests/screenshots.py           creates all pictures
python tests/screenshots.py study     creates those whose name contains a word
"""

import html
import io
import json
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import chromium
from PIL import Image

import bertkit

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
REVIEWS, NER = Path("runs/screenshots-reviews"), Path("runs/screenshots-ner")
NOTEBOOK = Path("runs/quickstart")
STUDY, CALIBRATED = Path("runs/study-reviews"), Path("runs/screenshots-calibrated")
PHONE = {"width": 390, "height": 900, "scale": 2}
NUM_COLORS = 96

# Texts of our own, from which reviews are made: no text of a dataset may be in a picture of the repository.
SUBJECTS = [
    "The soup", "The room", "The museum", "Our guide", "The concert", "The boat trip", "The bakery",
    "The new phone", "The hotel pool", "The garden", "The lecture", "The bus ride", "The market",
    "The coffee", "The puppet show", "The repair",
]  # fmt: skip
OPINIONS = {
    "positive": [
        "was a pleasure from start to finish", "made the whole day worthwhile", "was better than planned",
        "was not bad at all", "deserves every bit of its good reputation", "had one fault: it was too short",
        "turned out to be a quiet success", "was simple, honest and good", "surprised even my grumpy brother",
        "was worth the long wait", "left nothing to complain about", "could not have been friendlier",
    ],
    "negative": [
        "was a waste of money", "was not as good as it looked", "left us cold and tired",
        "promised much and delivered little", "was loud, slow and expensive", "could have been lovely",
        "was hardly worth the detour", "is a good idea, badly done", "made us leave early",
        "needs more care and less decoration", "was the low point of the week", "has seen better days",
    ],
}  # fmt: skip
FLIPPED_FRACTION = 0.06


@dataclass(frozen=True)
class Picture:
    """One view of a page.

    Attributes:
        name: Name of the image.
        page: The page.
        where: CSS selector of the element at the top.
        screen: Arguments of `set_viewport`.
        keys: Keys that are pressed first.
    """

    name: str
    page: Path
    where: str = "body"
    screen: dict[str, Any] = field(default_factory=lambda: {"width": 1120, "height": 1000})
    keys: str = ""


PICTURES = [
    Picture("report", REVIEWS / "report.html", screen={"width": 1120, "height": 1340}),
    Picture("report-dark", NER / "report.html", "#results", {"width": 1120, "height": 1000, "dark": True}),
    Picture("report-phone", REVIEWS / "report.html", screen=PHONE),
    Picture("study", STUDY / "report.html", screen={"width": 1120, "height": 1900}),
    Picture("label-issues", STUDY / "label_issues.html", screen={"width": 1120, "height": 860}, keys="223"),
    Picture("calibration", CALIBRATED / "report.html", "#results", {"width": 1120, "height": 1560}),
    Picture("explanations", CALIBRATED / "report.html", "#count", {"width": 1120, "height": 640}),
    Picture("notebook", NOTEBOOK / "cell.html", screen={"width": 1000, "height": 1180}),
]


def main(words: list[str]) -> None:
    """Train the runs, and create the pictures whose name contains one of the words."""
    if reason := chromium.find_missing_dependency():
        raise SystemExit(f"no pictures: {reason}")
    pictures = [picture for picture in PICTURES if not words or any(word in picture.name for word in words)]
    for folder in dict.fromkeys(picture.page.parent for picture in pictures):
        MAKERS[folder](folder)
    with chromium.open_chromium() as driver:
        for picture in pictures:
            take_screenshot(driver, picture)


def is_missing(folder: Path) -> bool:
    """Return whether a directory has no finished run."""
    return not (folder / "metrics.json").exists()


def train_reviews(folder: Path) -> None:
    """Train on reviews, and validate on others."""
    if is_missing(folder):
        data = write_reviews(folder.parent / "reviews.csv")
        bertkit.classify(data=data, validation_fraction=0.4, model="minilm", output_dir=str(folder))
    bertkit.report(runs=[str(folder)])


def train_ner(folder: Path) -> None:
    """Train on the sample for entities."""
    if is_missing(folder):
        bertkit.ner(data="sample", model="minilm", epochs=12, output_dir=str(folder), overwrite=True)
    bertkit.report(runs=[str(folder)])


def run_study(folder: Path) -> None:
    """Study reviews of which some have the wrong label, and list them."""
    if is_missing(folder):
        bertkit.study(
            "classify", data=write_reviews(folder.parent / "reviews.csv"), model="minilm", folds=3,
            seeds=2, trials=10, epochs=2, search=["learning_rate=2e-5..6e-4:log", "warmup=0,0.1,0.3"],
            batch_size=16, output_dir=str(folder),
        )  # fmt: skip
    bertkit.label_issues(study=str(folder))


def train_calibrated(folder: Path) -> None:
    """Train for long on a few reviews, calibrate on the others, and explain the worst predictions."""
    if is_missing(folder):
        bertkit.classify(
            data=write_reviews(folder.parent / "reviews.csv"), validation_fraction=0.8, model="minilm",
            epochs=16, batch_size=16, output_dir=str(folder),
        )  # fmt: skip
    bertkit.calibrate(run=str(folder), threshold="f1", coverage=0.8)
    bertkit.report(runs=[str(folder)], explain=True)


def train_in_notebook(folder: Path) -> None:
    """Run the cell of the quickstart that trains, and write a page of the cell and what Jupyter displays."""
    cells = json.loads((ROOT / "examples" / "quickstart.ipynb").read_text("utf-8"))["cells"]
    codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    [source] = [code for code in codes if "bertkit.classify(" in code]
    variables: dict[str, Any] = {"num_rows": 800}
    exec(source, variables)
    shown = variables["run"]._repr_mimebundle_()["text/html"]
    style = "body { font: 14px sans-serif; margin: 16px } pre { background: #f2f2f2; padding: 10px }"
    (folder / "cell.html").write_text(
        f"<!DOCTYPE html><style>{style}</style><pre>{html.escape(source)}</pre>{shown}", "utf-8"
    )


MAKERS = {
    REVIEWS: train_reviews, NER: train_ner, STUDY: run_study, CALIBRATED: train_calibrated,
    NOTEBOOK: train_in_notebook,
}  # fmt: skip


def write_reviews(path: Path) -> str:
    """Write all combinations of subjects and opinions; by a fixed seed, some labels are flipped."""
    generator = random.Random(0)
    rows = [
        (f"{subject} {opinion}.", label if generator.random() >= FLIPPED_FRACTION else other)
        for label, other in (("positive", "negative"), ("negative", "positive"))
        for opinion in OPINIONS[label]
        for subject in SUBJECTS
    ]
    generator.shuffle(rows)
    lines = ["text,label", *(f'"{text}",{label}' for text, label in rows)]
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return str(path)


def take_screenshot(driver: Any, picture: Picture) -> None:
    """Save one view of a page as a small PNG."""
    chromium.set_viewport(driver, **picture.screen)
    driver.get(chromium.to_file_url(picture.page))
    for key in picture.keys:
        driver.switch_to.active_element.send_keys(key)
    driver.execute_script("document.querySelector(arguments[0]).scrollIntoView()", picture.where)
    save_picture(driver, picture.name)


def save_picture(driver: Any, name: str) -> None:
    """Save what the browser shows as a small PNG."""
    IMAGES.mkdir(exist_ok=True)
    image = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
    path = IMAGES / f"{name}.png"
    image.quantize(NUM_COLORS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
