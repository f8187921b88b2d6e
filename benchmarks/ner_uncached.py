"""`bertkit ner` as it would be without cached vectors: a frozen encoder runs at every step.

All else is as it is, and so is the command line: `python benchmarks/ner_uncached.py ner --features ...`.
"""

from __future__ import annotations

from bertkit.cli.app import main
from bertkit.tasks.ner import Ner

if __name__ == "__main__":
    del Ner.precompute_features  # what any task does remains: the features themselves are read
    main()
