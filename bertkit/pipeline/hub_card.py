"""The model card of a run as it stands on the Hub: metadata before it, and the model loaded from there."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit import run_directory
from bertkit.data.loading import parse_hub_name
from bertkit.data.registry import find_dataset_spec
from bertkit.modeling.loading import PACKAGED_MODELS
from bertkit.tasks import task_class

QUOTED_STRING = r"""('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")"""  # as `repr` writes it
PIPELINE_CALL, LOAD_CALL = (
    re.compile(rf"(pipeline\('[\w-]+', ){QUOTED_STRING}"),
    re.compile(rf"bertkit\.load\({QUOTED_STRING}\)"),
)


def build_hub_card(folder: Path, repo: str) -> str:
    """The card of a finished run for the repository `ORG/NAME`."""
    metrics = run_directory.read_metrics(folder) or {}
    text = rewrite_for_hub((folder / run_directory.CARD_FILE).read_text("utf-8"), repo)
    about = _metadata(
        metrics,
        run_directory.read_settings(folder),
        repo,
        "transformers" if PIPELINE_CALL.search(text) else "bertkit",
    )
    return f"---\n{about.to_yaml()}\n---\n\n{text}"


def rewrite_for_hub(card: str, repo: str) -> str:
    """A run's card with the repository in place of the run directory."""
    _, _, rest = card.partition("\n")  # its title is the run directory's name
    rest = PIPELINE_CALL.sub(lambda found: found[1] + repr(repo), rest)
    rest = LOAD_CALL.sub(f"bertkit.load(snapshot_download({repo!r}))", rest)
    rest = rest.replace(
        "import bertkit\n", "import bertkit\nfrom huggingface_hub import snapshot_download\n", 1
    )
    return f"# {repo.partition('/')[2]}\n{rest}"


def _metadata(metrics: Mapping[str, Any], settings: Mapping[str, Any], repo: str, library: str) -> Any:
    """What the Hub shows and searches by; the language and the licence are not known."""
    from huggingface_hub import ModelCardData

    kind = task_class(metrics["task"])
    task, data = kind(kind.spec.config(**settings)), str(settings.get("data", ""))
    base = settings.get("model", "")  # a folder is kept by its whole path
    data_set = find_hub_dataset(data)
    return ModelCardData(
        library_name=library,
        pipeline_tag=task.spec.pipeline.task,
        base_model=None if base in ("", *PACKAGED_MODELS) or Path(base).is_absolute() else base,
        datasets=[data_set] if data_set else None,
        tags=["bertkit"],
        model_name=repo.partition("/")[2],
        eval_results=_results(metrics, task.spec.pipeline.task, data_set),
    )


def find_hub_dataset(data: str) -> str | None:
    """The repository of the data that `--data` named, if it is known to be on the Hub."""
    if Path(data).is_absolute():
        return None
    known = find_dataset_spec(data)
    there = known.hub if known else parse_hub_name(data)
    return there["id"] if there else None


def _results(metrics: Mapping[str, Any], task: str, data_set: str | None) -> list[Any]:
    """The scores of the validation and test splits, for the Hub's `model-index`."""
    from huggingface_hub import EvalResult

    name = metrics["data"]["name"]
    of_data = {"dataset_type": data_set or name, "dataset_name": name}
    return [
        EvalResult(task_type=task, **of_data, dataset_split=split, metric_type=metric, metric_value=value)
        for split in ("validation", "test")
        for metric, value in metrics[split].items()
    ]
