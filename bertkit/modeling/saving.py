"""Save a model and its tokenizer in the format of transformers."""

from pathlib import Path
from typing import Any

from bertkit.modeling.encoder_with_head import EncoderWithHead
from bertkit.modeling.replaced_tokens import ReplacedTokenModel


def save_model(model: Any, folder: Path, weights: dict[str, Any] | None, tokenizer: Any) -> None:
    """Save a model with its tokenizer, or each of its submodels in a directory that transformers can load.

    The file has the names that the weights have in the model. By default, transformers would write the names
    of the file that the model was loaded from, and change those of the head with them.

    Args:
        model: The model.
        folder: The directory of the model.
        weights: Complete state dict if the weights are sharded, else None. Those of a `ReplacedTokenModel`
            are never sharded.
        tokenizer: The tokenizer.
    """
    submodels = model.submodels if isinstance(model, ReplacedTokenModel) else {"": model}
    for name, submodel in submodels.items():
        options = {} if isinstance(submodel, EncoderWithHead) else {"save_original_format": False}
        submodel.save_pretrained(folder / name, state_dict=weights, **options)
        tokenizer.save_pretrained(folder / name)
