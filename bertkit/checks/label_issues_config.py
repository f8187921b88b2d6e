"""The settings of `bertkit label-issues`. Importing this module is fast."""

import dataclasses
from dataclasses import dataclass

from bertkit.setting import OUTPUT, Settings, setting

LABEL_ISSUES_HELP = (
    "List the training rows of a study whose labels are probably wrong, and write a page to review them."
)


@dataclass(frozen=True, kw_only=True)
class LabelIssuesConfig(Settings):
    """Settings of `bertkit label-issues`."""

    study: str = setting(
        dataclasses.MISSING, "Directory of a finished study with folds.", OUTPUT, is_positional=True,
        completion="runs",
    )  # fmt: skip
