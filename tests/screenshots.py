"""Create the pictures of `report.html` in the README; missing runs are trained first."""

import io
from pathlib import Path

import chromium
from PIL import Image

import bertkit

IMAGES = Path(__file__).parent.parent / "docs" / "images"
RUNS = {
    "classify": Path("runs/classify-imdb-minilm"),  # that of `make demo`
    "ner": Path("runs/screenshots-ner"),
}
NUM_COLORS = 96


def main():
    """Train the runs, and create the pictures."""
    if reason := chromium.find_missing_dependency():
        raise SystemExit(f"no pictures: {reason}")
    if not (RUNS["classify"] / "metrics.json").exists():
        bertkit.classify(recipe="imdb", output_dir=str(RUNS["classify"]), overwrite=True)
    if not (RUNS["ner"] / "metrics.json").exists():
        bertkit.ner(data="sample", model="minilm", epochs=12, output_dir=str(RUNS["ner"]), overwrite=True)
    for run in RUNS.values():
        bertkit.report(runs=[str(run)])
    with chromium.open_chromium() as driver:
        take_screenshot(driver, "classify", "report", "body", width=1120, height=1830)
        take_screenshot(driver, "ner", "report-dark", "#results", width=1120, height=1000, dark=True)
        take_screenshot(driver, "classify", "report-phone", "#results", width=390, height=900, scale=2)


def take_screenshot(driver, task, name, where, **screen):
    """Save one view of a page as a small PNG."""
    chromium.set_viewport(driver, **screen)
    driver.get(chromium.to_file_url(RUNS[task] / "report.html"))
    driver.execute_script("document.querySelector(arguments[0]).scrollIntoView()", where)
    IMAGES.mkdir(exist_ok=True)
    image = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
    path = IMAGES / f"{name}.png"
    image.quantize(NUM_COLORS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
