"""Run `bertkit ner` without cached vectors: a frozen encoder runs at every step.

The command line is the same: `python benchmarks/ner_uncached.py ner --features ...`.
"""

from __future__ import annotations

from bertkit.cli.app import main
from bertkit.methods.vectors import FrozenFeatures

if __name__ == "__main__":
    del FrozenFeatures.precompute  # by default, the features are unchanged
    main()
