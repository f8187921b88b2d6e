"""Save a model and its tokenizer in the format of transformers."""

from pathlib import Path
from typing import Any

from bertkit.modeling.replaced_tokens import ReplacedTokenModel


def save_model(model: Any, folder: Path, weights: dict[str, Any] | None, tokenizer: Any) -> None:
    """Save a model with its tokenizer, or each of its submodels in a directory that transformers can load.

    Args:
        model: The model.
        folder: The directory of the model.
        weights: Complete state dict if the weights are sharded, else None. Those of a `ReplacedTokenModel`
            are never sharded.
        tokenizer: The tokenizer.
    """
    if not isinstance(model, ReplacedTokenModel):
        model.save_pretrained(folder, state_dict=weights)
        tokenizer.save_pretrained(folder)
        return
    for name, submodel in model.submodels.items():
        submodel.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
