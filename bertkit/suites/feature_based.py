"""The paper's table of the feature-based approach: `ner` on a frozen encoder, a run for each row."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.config import fill_unset
from bertkit.data.loading import load_dataset
from bertkit.data.readers.files import Dialect
from bertkit.modeling import loading
from bertkit.modeling.tagger import select_layers
from bertkit.pipeline.run import Run
from bertkit.recipes import read_recipe
from bertkit.suites.base import Suite, run_suite, select_names
from bertkit.suites.config import FeatureBasedConfig
from bertkit.suites.result_table import ResultTable, format_percent
from bertkit.tasks.ner import Ner
from bertkit.utils.reporting import Reporter

# Features -> F1 of BERT-BASE on the development set of CoNLL-2003, in percent; in the paper's order.
PAPER_F1 = {
    "embeddings": 91.0, "second-to-last": 95.6, "last": 94.9, "sum-last-4": 95.9, "concat-last-4": 96.1,
    "sum-all": 95.5,
}  # fmt: skip
PAPER_DATASET, BASELINE = "conll2003", "frequent_tag"
HEADINGS = ("features", "ours (dev)", "95 % interval", "ours (test)", "BERT-BASE (dev)")


def run_feature_based(
    settings: Mapping[str, Any], recipe: str | None = None, reporter: Reporter | None = None
) -> Run:
    """Run the chosen rows, or what is left; see `bertkit feature-based --help` and `run_suite`."""
    return run_suite(FeatureBasedSuite, settings, recipe, reporter)


class FeatureBasedSuite(Suite):
    """The chosen rows in one directory: `FEATURES` is a run each."""

    name = "feature-based"
    Config = FeatureBasedConfig
    suite_settings = frozenset({"features"})
    output_names = list(PAPER_F1)

    def __init__(self, config: FeatureBasedConfig, reporter: Reporter) -> None:
        super().__init__(config, reporter)
        self.run_dirs = select_names("--features", config.features, list(PAPER_F1), "row of the table")
        shared = read_recipe(get_recipe_name(self.run_dirs[0]), Ner.spec.name, Ner.spec.config).settings
        self.config = fill_unset(self.config, {key: shared[key] for key in ("data", "model")})

    def resolve_inputs(self) -> list[str]:
        """The data, the model and its layers. Raises `UserError` for what is not there."""
        self.model_source = loading.find_model(str(self.config.model))
        model_config = loading.load_config(self.model_source)
        for features in self.run_dirs:
            select_layers(model_config, features)
        found = load_dataset(
            str(self.config.data), Ner.spec.name, self.config.data_dir, Dialect(conll=Ner.spec.reads_word_lines)
        )
        self.data_source = found.source
        return [found.name, self.model_source.name]

    def plan_runs(self) -> list[dict[str, Any]]:
        """A run of each row."""
        return [
            {"folder": row, "recipe": get_recipe_name(row), "data": self.data_source} for row in self.run_dirs
        ]

    def execute_runs(self, folder: Path) -> dict[str, Run]:
        """A run of each row."""
        return {features: self._row(features, folder / features) for features in self.run_dirs}

    def _row(self, features: str, place: Path) -> Run:
        self.reporter.info(f"{features}: {place}")
        return self.train(Ner.spec.name, get_recipe_name(features), {}, place)

    def compute_metrics(self, folder: Path, results: dict[str, Run]) -> dict[str, Any]:
        """The scores of each row; data and baselines are the same for all."""
        first = next(iter(results.values())).metrics
        return {
            "task": self.name,
            "data": first["data"],
            "model": first["model"],
            "features": {features: _summary(run.metrics) for features, run in results.items()},
            "baselines": first["baselines"],
        }

    @staticmethod
    def build_table(metrics: Mapping[str, Any], folder: Path) -> ResultTable:  # noqa: ARG004
        """The paper's table with ours beside it."""
        return ResultTable(
            f"feature-based · {metrics['data']['name']} · {metrics['model']}",
            HEADINGS, _rows(metrics), _source(metrics),
            [f"{row}: {found['seconds']:.0f} s of training" for row, found in metrics["features"].items()],
        )  # fmt: skip


def get_recipe_name(features: str) -> str:
    """The name of the recipe of a row."""
    return f"ner/feature-based/{features}"


def _summary(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """What a row keeps of its run."""
    kept = {key: metrics[key] for key in ("validation", "intervals", "test")}
    return {**kept, "seconds": metrics["training"]["seconds"]}


# ---- the table


def _rows(metrics: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The cells of each row run, and of the baseline, in the order of `HEADINGS`."""
    found = [
        (
            features,
            format_percent(about["validation"]["f1"]),
            " to ".join(map(format_percent, about["intervals"]["f1"])),
            format_percent(about["test"].get("f1")),
            f"{PAPER_F1[features]:.1f}",
        )
        for features, about in metrics["features"].items()
    ]
    return [*found, (BASELINE, format_percent(metrics["baselines"][BASELINE]["f1"]), "", "", "")]


def _source(metrics: Mapping[str, Any]) -> str:
    """Whose figures stand beside ours, and of which data where ours are of other."""
    data = metrics["data"]["name"]
    other = "" if data == PAPER_DATASET else f"; ours are of {data}"
    return (
        "F1 of entities, in percent. BERT-BASE: Devlin et al. 2018, table 7, of the development set of "
        f"CoNLL-2003{other}."
    )
