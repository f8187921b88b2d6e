"""`bertkit feature-based`: run `ner` on layers of a frozen encoder, once for each row of the table."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.data.sources import load_dataset
from bertkit.models import loading
from bertkit.models.own_models import select_layers
from bertkit.report.tables import ResultTable, format_percent, format_score
from bertkit.settings.recipes import read_recipe
from bertkit.settings.setting import fill_unset
from bertkit.suites.base import RunMetrics, Suite, SuiteRun, select_names
from bertkit.suites.config import FeatureBasedConfig
from bertkit.tasks.ner.task import Ner

# F1 of BERT-BASE on the development set of CoNLL-2003 in percent, by features, in the order of the paper.
PAPER_F1 = {
    "embeddings": 91.0, "second-to-last": 95.6, "last": 94.9, "sum-last-4": 95.9, "concat-last-4": 96.1,
    "sum-all": 95.5,
}  # fmt: skip
PAPER_DATASET = "conll2003"
BASELINE = "frequent_tag"
HEADINGS = ("features", "ours (dev)", "95 % interval", "ours (test)", "BERT-BASE (dev)")


def get_recipe_name(features: str) -> str:
    """Return the name of the recipe for these features."""
    return f"ner/feature-based/{features}"


class FeatureBasedSuite(Suite):
    """Runs for the selected rows of the table, in the directories `FEATURES`."""

    name = "feature-based"
    suite_settings = frozenset({"features"})
    output_names = list(PAPER_F1)

    def __init__(self, config: FeatureBasedConfig) -> None:
        self.features = select_names("--features", config.features, list(PAPER_F1), "row of the table")
        recipe = read_recipe(get_recipe_name(self.features[0]), Ner.definition.name, Ner.definition.config)
        super().__init__(fill_unset(config, {name: recipe.settings[name] for name in ("data", "model")}))

    def resolve_inputs(self) -> list[str]:
        """Find the data and the model. Raises `UserError` if either is missing, or for too few layers."""
        self.model_source = loading.find_model(str(self.config.model))
        model_config = loading.load_config(self.model_source)
        for features in self.features:
            select_layers(model_config, features)
        dataset = load_dataset(
            str(self.config.data),
            Ner.definition.name,
            self.config.data_dir,
            Ner.definition.make_dialect(self.config.encoding),
        )
        self.data_source = dataset.source
        return [dataset.name, self.model_source.name]

    def plan_runs(self, folder: Path) -> list[SuiteRun]:
        """Return one run for each row. The recipes differ only in the features."""
        run_group = self.make_run_group(Ner.definition.name, get_recipe_name(self.features[0]), {})
        return [
            SuiteRun(
                folder=folder / features, run_group=run_group, settings={"features": features},
                seed=self.config.seed, recipe=get_recipe_name(features), data=self.data_source, metric="f1",
            )
            for features in self.features
        ]  # fmt: skip

    def compute_metrics(self, folder: Path, results: RunMetrics) -> dict[str, Any]:
        """Return the scores of each row; data and baselines are the same for all rows."""
        first = next(iter(results.values()))
        return {
            "task": self.name,
            "data": first["data"],
            "model": first["model"],
            "features": {path.name: _summarize(metrics) for path, metrics in results.items()},
            "baselines": first["baselines"],
        }

    @staticmethod
    def build_table(metrics: Mapping[str, Any], folder: Path) -> ResultTable:  # noqa: ARG004
        """Return a table of our scores and the paper's scores."""
        return ResultTable(
            title=f"feature-based · {metrics['data']['name']} · {metrics['model']}",
            headings=HEADINGS,
            rows=_build_rows(metrics),
            caption=_build_caption(metrics),
            run_notes=[
                f"{features}: trained in {summary['seconds']:.0f} s"
                for features, summary in metrics["features"].items()
            ],
            failures=metrics.get("failed", {}),
        )


def _summarize(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of a row in `metrics.json`."""
    scores = {key: metrics[key] for key in ("validation", "intervals", "test")}
    return {**scores, "seconds": metrics["training"]["seconds"]}


def _build_rows(metrics: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the cells of each row and of the baseline, in the order of `HEADINGS`."""
    rows = [
        (
            features,
            format_percent(summary["validation"]["f1"]),
            " to ".join(map(format_percent, summary["intervals"]["f1"])),
            format_percent(summary["test"].get("f1")),
            format_score(PAPER_F1[features]),
        )
        for features, summary in metrics["features"].items()
    ]
    rows += [
        (features, "failed", "", "", format_score(PAPER_F1[features]))
        for features in metrics.get("failed", {})
    ]
    return [*rows, (BASELINE, format_percent(metrics["baselines"][BASELINE]["f1"]), "", "", "")]


def _build_caption(metrics: Mapping[str, Any]) -> str:
    dataset = metrics["data"]["name"]
    note = "" if dataset == PAPER_DATASET else f"; our scores are on {dataset}"
    return (
        "Entity F1 in percent. BERT-BASE: Devlin et al. 2018, table 7, on the development set of "
        f"CoNLL-2003{note}."
    )
