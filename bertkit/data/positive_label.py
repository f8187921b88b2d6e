"""Infer which of two labels is the positive class."""

import re
from collections.abc import Sequence

NEGATIONS = ("not", "non", "un", "no")
POSITIVE_NAMES = {"1", "positive", "pos", "true", "yes", "긍정", "참", "예"}
NEGATIVE_NAMES = {"0", "negative", "neg", "false", "no", "부정", "거짓", "아니오"}


def infer_positive_label(labels: Sequence[str]) -> str:
    """Return the positive one of two labels, which is the class that `positive_f1` scores.

    `duplicate` is positive if the other label is `not_duplicate`, and `true` if the other label is a negative
    name such as `false`. Otherwise, the second label is positive.
    """
    first, second = (re.sub(r"[_\-\s]+", "", label.casefold()) for label in labels)
    is_negated = first != "" and second in {prefix + first for prefix in NEGATIONS}
    has_positive_name = first in POSITIVE_NAMES and second in NEGATIVE_NAMES
    return labels[0] if is_negated or has_positive_name else labels[1]
