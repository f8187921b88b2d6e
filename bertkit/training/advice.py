"""Settings the user did not give, by data size and model size, each with its reason.

Devlin et al. 2018, appendix A.3: batch 16 or 32, learning rate 5e-5 to 2e-5, 2 to 4 epochs. Small
models take higher rates (google-research/bert README, "smaller BERT models": 3e-4 to 3e-5).
"""

from typing import Any

from bertkit.errors import format_count

TINY_MODEL, SMALL_MODEL, LARGE_MODEL = 10e6, 50e6, 200e6
FEW_ROWS, MANY_ROWS = 5_000, 100_000


def suggest_hyperparameters(rows: int, parameters: int, unit: str = "row") -> tuple[dict[str, Any], str]:
    """Values for `epochs`, `learning_rate`, `batch_size`, and one line that says why.

    Args:
        rows: training examples.
        parameters: of the whole model.
        unit: what a row is called.
    """
    size = f"{format_count(rows, f'training {unit}')} and {_told(parameters)} parameters"
    advice = {
        "epochs": 4.0 if rows < FEW_ROWS else 3.0 if rows <= MANY_ROWS else 2.0,
        "batch_size": 16 if rows < FEW_ROWS else 32,
        "learning_rate": _learning_rate(rows, parameters),
    }
    return advice, f"for {size}"


def _told(parameters: int) -> str:
    """`412k`, `4.4M` or `110M`."""
    if parameters < 999_500:
        return f"{parameters / 1e3:.0f}k"
    return f"{parameters / 1e6:.{1 if parameters < 9.95e6 else 0}f}M"


def _learning_rate(rows: int, parameters: int) -> float:
    if parameters < TINY_MODEL:
        return 3e-4
    if parameters < SMALL_MODEL:
        return 1e-4 if rows <= MANY_ROWS else 5e-5
    if parameters > LARGE_MODEL:
        return 2e-5
    return 3e-5 if rows <= MANY_ROWS else 2e-5
