"""Malformed files, as bytes: what each reader is given, and what must come of it.

A case is a name, the bytes of a file, and its outcome: the words that the one line of its refusal holds,
or, where the file is legal after all, how many rows it has.
"""

from malformed import choices, columns, indexes, prose, questions, recipes, tables
from malformed.case import Case
from malformed.folders import RUN_DAMAGES

CASES: dict[str, dict[str, Case]] = {
    "classify": tables.CASES,
    "ner": columns.CASES,
    "qa": questions.CASES,
    "swag": choices.CASES,
    "pretrain-mlm-nsp": prose.CASES,
    "recipe": recipes.CASES,
    "index": indexes.CASES,
}

__all__ = ["CASES", "RUN_DAMAGES"]
