"""Suites: groups of runs that reproduce a table of the paper. `SUITES` is the only list of suites."""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from bertkit.settings.run_settings import RunConfig
from bertkit.suites.config import AblationConfig, FeatureBasedConfig, GlueConfig, KlueConfig

if TYPE_CHECKING:
    from bertkit.suites.base import Suite


@dataclass(frozen=True, kw_only=True)
class SuiteSpec:
    """Settings, help text and class of a suite.

    Attributes:
        config: The settings of the command.
        help: The help text of the command.
        target: The class as `module:name`. It is imported only when the suite runs.
    """

    config: type[RunConfig]
    help: str
    target: str


SUITES = {
    "glue": SuiteSpec(
        config=GlueConfig,
        help="Fine-tune on the GLUE tasks, print the paper's table, and write the leaderboard's files.",
        target="bertkit.suites.glue:GlueSuite",
    ),
    "klue": SuiteSpec(
        config=KlueConfig,
        help="Fine-tune on the KLUE tasks (Korean), and print the official scores beside those of KLUE-BERT.",
        target="bertkit.suites.klue:KlueSuite",
    ),
    "feature-based": SuiteSpec(
        config=FeatureBasedConfig,
        help="Run ner on different layers of a frozen encoder, one run for each row of the paper's table.",
        target="bertkit.suites.feature_based:FeatureBasedSuite",
    ),
    "ablation": SuiteSpec(
        config=AblationConfig,
        help="Pre-train variants on the same text, fine-tune each, and print the paper's ablation tables.",
        target="bertkit.suites.ablation:AblationSuite",
    ),
}


def suite_class(name: str) -> "type[Suite]":
    """Return the class that runs a suite."""
    module, _, attribute = SUITES[name].target.partition(":")
    return getattr(import_module(module), attribute)
