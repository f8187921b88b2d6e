"""Create the picture of the demo in the README: run the command and export its console output as SVG."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

IMAGE = Path(__file__).parent.parent / "docs" / "images" / "demo.svg"
WIDTH = 100
COMMAND = ["bertkit", "classify", "--recipe", "rotten-tomatoes", "--output-dir", "runs/demo", "--overwrite"]
TERMINAL = {"TTY_COMPATIBLE": "1", "TTY_INTERACTIVE": "0", "FORCE_COLOR": "1", "COLUMNS": str(WIDTH)}
CURSOR_CODE = re.compile(r"\x1b\[\?25[lh]")  # hides and shows the cursor


def main() -> None:
    """Run the demo and write its output to `docs/images/demo.svg`."""
    finished = subprocess.run(
        [sys.executable, "-m", *COMMAND], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | TERMINAL, check=True,
    )  # fmt: skip
    output = CURSOR_CODE.sub("", finished.stdout)
    print(output)
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text("$ bertkit classify --recipe rotten-tomatoes", style="bold"))
    console.print(Text.from_ansi(output))
    console.save_svg(str(IMAGE), title="bertkit")
    print(f"{IMAGE}: {IMAGE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
