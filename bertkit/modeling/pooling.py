"""What the stock heads read of a text: a place that has seen all of it, maybe behind a BiLSTM.

They read the first place, [CLS], and for `qa` it stands for "no answer". Where no place sees a later one,
[CLS] has seen nothing but itself, and the last piece has seen all.
"""

from typing import Any

import torch
from torch import nn

from bertkit.config import Head
from bertkit.errors import UserError
from bertkit.modeling.bilstm import BiLstm, gather_positions
from bertkit.modeling.heads import get_head_dropout
from bertkit.modeling.loading import HEAD_KEY, ModelSource, load_model, read_weights

BILSTM = "bilstm"  # under this name in a model and its weights


def is_causal(config: Any) -> bool:
    """Whether a model reads from left to right: no place sees a later one."""
    return bool(getattr(config, "is_decoder", False))


def load_with_pooling(auto_class: Any, source: ModelSource, config: Any, new_head: bool, head: Head) -> Any:
    """A stock model whose head reads a place that has seen the text, behind a BiLSTM if `head` says so.

    The BiLSTM comes from `source` unless the head is new.

    Raises:
        UserError: weights that cannot be read, that do not fit, or a width that a BiLSTM cannot give.
    """
    model = load_model(auto_class, source, config, new_head)
    if head == "bilstm":
        model.config.update({HEAD_KEY: head})
        model.add_module(BILSTM, _bilstm(model.config))
        if not new_head:
            _load_bilstm(model, source)
    if is_causal(model.config):
        model.config.use_cache = False  # of keys and values, for texts that are gone on with
    return add_pooling(model)


def add_pooling(model: Any) -> Any:
    """Have the head over a causal model, or one with a BiLSTM, see the vectors as `_places` puts them."""
    bilstm, causal = getattr(model, BILSTM, None), is_causal(model.config)

    def read(encoder: Any, _: Any, given: dict[str, Any], output: Any) -> Any:
        states, mask = output.last_hidden_state, given.get("attention_mask")
        if mask is None:
            mask = torch.ones(states.shape[:2], dtype=torch.long, device=states.device)
        states = states if bilstm is None else bilstm(states, mask)
        output.last_hidden_state = gather_positions(states, _places(mask, causal))
        if output.get("pooler_output") is not None:
            output.pooler_output = _pooled(encoder, output.last_hidden_state)
        return output

    if causal or bilstm is not None:
        model.base_model.register_forward_hook(read, with_kwargs=True)
    return model


def _places(mask: torch.Tensor, causal: bool) -> torch.Tensor:
    """[sequences, length] whose vector stands at each place.

    In a causal model the first real piece and the last change places; neither is ever a word. What is read as
    the whole text also stands at the very first place, be it padding: heads look there.
    """
    count, length = mask.shape  # len() would be a constant in an exported graph
    rows = torch.arange(count, device=mask.device)
    places = torch.arange(length, device=mask.device).repeat(count, 1)
    first, last = mask.argmax(1), length - 1 - mask.flip(1).argmax(1)
    if causal:
        places[rows, first], places[rows, last] = last, first
    places[:, 0] = last if causal else first
    return places


def _pooled(encoder: Any, states: torch.Tensor) -> torch.Tensor:
    """What the encoder's own pooler makes of the first place, which in some architectures is a bare layer."""
    pooler = encoder.pooler
    return pooler(states[:, 0]).tanh() if isinstance(pooler, nn.Linear) else pooler(states)


def _bilstm(config: Any) -> BiLstm:
    """Half of the width a direction, so that the stock head fits behind it."""
    width = config.hidden_size
    if width % 2:
        raise UserError(f"--head bilstm: needs an even width, the model's is {width}; use --head linear")
    return BiLstm(width, width // 2, get_head_dropout(config))


def _load_bilstm(model: Any, source: ModelSource) -> None:
    prefix = BILSTM + "."
    found = read_weights(source.folder, lambda name: name.startswith(prefix))
    try:
        model.get_submodule(BILSTM).load_state_dict(
            {name.removeprefix(prefix): tensor for name, tensor in found.items()}
        )
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise UserError(f"--model {source.name}: its BiLSTM does not fit ({reason})") from error
