"""Pre-train, fine-tune, evaluate and use BERT models: one function per command.

`help(bertkit.classify)` lists the settings of a function. Importing the package loads no heavy dependency.
"""

from typing import Any

from bertkit import api
from bertkit._version import __version__ as __version__
from bertkit.api import (
    ablation,
    calibrate,
    check,
    classify,
    distill,
    embed,
    evaluate,
    export,
    feature_based,
    fetch,
    fill_mask,
    glue,
    klue,
    label_issues,
    ladder,
    load,
    ner,
    nli,
    predict,
    pretrain_mlm_nsp,
    qa,
    report,
    study,
    swag,
    train_tokenizer,
)
from bertkit.errors import RunInterrupted, UserError
from bertkit.utils.system import limit_spinning, silence_native_warnings

# Before torch is imported: every entry point imports this package first.
limit_spinning()
silence_native_warnings()


__all__ = [
    "Classifier",
    "RunInterrupted",
    "UserError",
    "ablation",
    "calibrate",
    "check",
    "classify",
    "distill",
    "embed",
    "evaluate",
    "export",
    "feature_based",
    "fetch",
    "fill_mask",
    "glue",
    "klue",
    "label_issues",
    "ladder",
    "load",
    "ner",
    "nli",
    "predict",
    "pretrain_mlm_nsp",
    "qa",
    "report",
    "study",
    "swag",
    "train_tokenizer",
]


def __getattr__(name: str) -> Any:
    """Import `Classifier` when it is first used, because scikit-learn is slow to import.

    Other names are functions of the tasks of plugins.
    """
    if name == "Classifier":
        from bertkit.estimator import Classifier

        return Classifier
    return api.make_plugin_function(name)
