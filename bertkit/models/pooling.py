"""How the hidden states of a text become one vector, in heads, in `embed` and in sentence-transformers."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from bertkit.data.hub import summarize_error
from bertkit.errors import UserError, format_list
from bertkit.models.loading import POOLING_KEY, WEIGHTS_FILE, ModelSource
from bertkit.utils.files import write_text


def is_causal(config: Any) -> bool:
    """Return whether the model attends from left to right only."""
    return bool(getattr(config, "is_decoder", False))


def compute_mean_vectors(states: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """Return the mean over all tokens except padding in fp32, `[batch, hidden_size]`.

    Args:
        states: `[batch, seq_len, hidden_size]`. Models with block-sparse attention return more positions.
        attention_mask: `[batch, seq_len]`, 0 at padding.
    """
    weights = attention_mask.unsqueeze(-1).float()
    return (states[:, : weights.shape[1]].float() * weights).sum(1) / weights.sum(1)


def get_pooled_positions(mask: torch.Tensor, model_is_causal: bool) -> torch.Tensor:
    """Return the position of the vector that the head reads at each position `[batch, seq_len]`.

    In a causal model, the vectors of the first and the last real token are swapped; both are special tokens.
    Position 0 always gets the vector that represents the text, even if position 0 is padding.
    """
    batch_size, seq_len = mask.shape  # len() would be a constant in an exported graph
    rows = torch.arange(batch_size, device=mask.device)
    positions = torch.arange(seq_len, device=mask.device).repeat(batch_size, 1)
    first, last = mask.argmax(1), seq_len - 1 - mask.flip(1).argmax(1)
    if model_is_causal:
        positions[rows, first], positions[rows, last] = last, first
    positions[:, 0] = last if model_is_causal else first
    return positions


def gather_positions(vectors: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Select from `[batch, seq_len, size]` the vector at each of the positions `[batch, seq_len]`."""
    return vectors.gather(1, positions.unsqueeze(-1).expand_as(vectors))


# Turns hidden states `[batch, seq_len, size]` of these rows of the features into `[batch, ..., dimension]`.
PoolStates = Callable[[torch.Tensor, np.ndarray], torch.Tensor]


def select_pooled_tokens(pooling: str, lengths: np.ndarray, config: Any) -> np.ndarray:
    """Return `[n, 2]` start and end of the tokens whose mean vector represents a text.

    Args:
        pooling: "mean" for all tokens, or "cls" for [CLS]. In a causal model, "cls" is the last token, which
            is the only one that attends to the whole text.
        lengths: `[n]` number of tokens of each text.
    """
    if pooling == "mean":
        return np.stack([np.zeros_like(lengths), lengths], 1)
    token = lengths - 1 if is_causal(config) else np.zeros_like(lengths)
    return np.stack([token, token + 1], 1)


def average_ranges(token_ranges: np.ndarray) -> PoolStates:
    """Return the function that averages hidden states between start and end of tokens, `[n, ..., 2]`."""

    def average(states: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
        positions = torch.arange(states.shape[1], device=states.device)
        ranges = torch.from_numpy(token_ranges[rows]).to(states.device)
        start, stop = ranges.unsqueeze(-1).unbind(-2)
        is_in_range = ((positions >= start) & (positions < stop)).to(states.dtype)
        sums = torch.einsum("b...l,blh->b...h", is_in_range, states)
        return sums / is_in_range.sum(-1, keepdim=True)

    return average


# ---- modules of sentence-transformers

MODULES_FILE, TRANSFORMER_FILE, POOLING_DIR = "modules.json", "sentence_bert_config.json", "1_Pooling"
MODULES_PACKAGE = "sentence_transformers."  # start of the types of its own modules; others are custom code
# Modes by the keys of older files, in the order in which their vectors are concatenated.
MODES_BY_KEY = {
    "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max", "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean", "pooling_mode_lasttoken": "lasttoken",
}  # fmt: skip
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "Identity": lambda vectors: vectors, "Tanh": torch.tanh, "ReLU": torch.relu,
    "GELU": torch.nn.functional.gelu,
}  # fmt: skip


@dataclass(frozen=True)
class DenseLayer:
    """A module `Dense`: `activation(x @ weight.T + bias)`, weight `[out_features, in_features]`."""

    name: str
    weight: torch.Tensor
    bias: torch.Tensor | None
    activation: Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class SentenceModules:
    """How the hidden states of a text become one vector."""

    modes: tuple[str, ...] = ("cls",)
    linear_layers: tuple[DenseLayer, ...] = ()
    normalize: bool = False

    @property
    def pooling(self) -> str:
        """The modes, such as "mean" or "cls+max"."""
        return "+".join(self.modes)

    @property
    def name(self) -> str:
        """The pooling and the linear layers, such as "mean" or "mean, 2_Dense"."""
        return ", ".join([self.pooling, *(layer.name for layer in self.linear_layers)])

    def compute(self, states: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return the vectors of texts before they are scaled to unit length, `[batch, dimension]`.

        The states `[batch, seq_len, hidden_size]` are fp32; `lengths` are the numbers of tokens `[batch]`.
        """
        vectors = torch.cat([_pool(states, lengths, mode) for mode in self.modes], -1)
        device = vectors.device
        for layer in self.linear_layers:
            bias = None if layer.bias is None else layer.bias.to(device)
            vectors = layer.activation(torch.nn.functional.linear(vectors, layer.weight.to(device), bias))
        return vectors

    def get_dimension(self, hidden_size: int) -> int:
        """Return the size of a vector, given the size of a hidden state."""
        if self.linear_layers:
            return len(self.linear_layers[-1].weight)
        return len(self.modes) * hidden_size


def _pool(states: torch.Tensor, lengths: torch.Tensor, mode: str) -> torch.Tensor:
    """Turn hidden states `[batch, seq_len, hidden_size]` into vectors `[batch, hidden_size]`."""
    positions = torch.arange(states.shape[1], device=states.device)
    is_token = (positions < lengths.unsqueeze(-1)).unsqueeze(-1)  # [batch, seq_len, 1]
    if mode == "cls":
        return states[:, 0]
    if mode == "lasttoken":
        return states[torch.arange(len(states), device=states.device), lengths - 1]
    if mode == "max":
        return states.masked_fill(~is_token, -torch.inf).amax(1)
    weights = is_token.to(states.dtype)
    if mode == "weightedmean":  # later tokens of a causal model have seen more of the text
        weights = weights * (positions + 1).unsqueeze(-1)
    total = weights.sum(1)
    return (states * weights).sum(1) / (total.sqrt() if mode == "mean_sqrt_len_tokens" else total)


def read_sentence_modules(source: ModelSource, config: Any) -> SentenceModules | None:
    """Return the modules that a model was trained with; None for models without them."""
    if pooling := getattr(config, POOLING_KEY, None):
        return SentenceModules((str(pooling),))
    if not (source.folder / MODULES_FILE).is_file():
        folder = source.folder / POOLING_DIR
        return SentenceModules(_read_modes(folder, source)) if folder.is_dir() else None
    modes: tuple[str, ...] = ()
    linear_layers: list[DenseLayer] = []
    normalize = False
    try:
        modules = [
            (str(module["type"]), str(module["path"])) for module in _read_json(source.folder / MODULES_FILE)
        ]
    except (TypeError, KeyError) as error:
        raise UserError(
            f"{source.folder / MODULES_FILE}: is not a list of modules with type and path; download it again"
        ) from error
    for number, (type, path) in enumerate(modules):
        kind, folder = type.split(".")[-1], source.folder / path
        name = path or kind
        if not type.startswith(MODULES_PACKAGE):
            raise _make_error(source, name, f"{type} is custom code, which bertkit never runs")
        if kind == "Pooling" and not modes:
            modes = _read_modes(folder, source)
        elif kind == "Dense" and modes and not normalize:
            linear_layers.append(_read_linear_layer(folder, source))
        elif kind == "Normalize" and modes:
            normalize = True
        elif kind == "Dense":
            raise _make_error(source, name, "a linear layer must follow the pooling, without unit length")
        elif kind != "Dropout" and (kind != "Transformer" or number):  # Dropout has no effect in inference
            raise _make_error(source, name, "the module is not known")
    return SentenceModules(modes, tuple(linear_layers), normalize) if modes else None


def write_sentence_modules(folder: Path, config: Any, max_length: int) -> None:
    """Write the files with which `SentenceTransformer(folder)` computes the vectors of `bertkit embed`.

    Only a model whose config states a pooling has them: the vectors of the other models were not trained to
    represent a text. The keys are those that all versions of sentence-transformers read.
    """
    pooling = getattr(config, POOLING_KEY, None)
    if pooling is None:
        return
    mode = "lasttoken" if pooling == "cls" and is_causal(config) else pooling
    modes = {key: name == mode for key, name in MODES_BY_KEY.items()}
    modules = [("", "Transformer"), (POOLING_DIR, "Pooling")]
    files: dict[str, Any] = {
        MODULES_FILE: [
            {"idx": index, "name": str(index), "path": path, "type": f"{MODULES_PACKAGE}models.{kind}"}
            for index, (path, kind) in enumerate(modules)
        ],
        f"{POOLING_DIR}/config.json": {"word_embedding_dimension": config.hidden_size, **modes},
        TRANSFORMER_FILE: {"max_seq_length": max_length, "do_lower_case": False},
    }
    (folder / POOLING_DIR).mkdir()
    for name, content in files.items():
        write_text(folder / name, json.dumps(content, indent=2) + "\n")


def read_default_prompt(source: ModelSource) -> str | None:
    """Return the text that sentence-transformers puts before each text by default, or None."""
    path = source.folder / "config_sentence_transformers.json"
    config = _read_json(path) if path.is_file() else {}
    return (config.get("prompts") or {}).get(config.get("default_prompt_name")) or None


def read_max_length(source: ModelSource) -> int | None:
    """Return the length in tokens to which sentence-transformers truncates texts, or None without one."""
    value = _read_transformer_settings(source).get("max_seq_length")
    return value if isinstance(value, int) and value > 0 else None


def lowers_case(source: ModelSource) -> bool:
    """Return whether sentence-transformers lower-cases texts before the tokenizer does its part."""
    return bool(_read_transformer_settings(source).get("do_lower_case"))


def _read_transformer_settings(source: ModelSource) -> dict[str, Any]:
    # sentence_bert_config.json; older names have the architecture
    path = next(source.folder.glob("sentence_*_config.json"), None)
    settings = {} if path is None else _read_json(path)
    return settings if isinstance(settings, dict) else {}


def _make_error(source: ModelSource, module: str, reason: str) -> UserError:
    return UserError(
        f"{source.folder}: bertkit cannot compute its module {module} ({reason}); use another model, or "
        "bertkit embed with --pooling cls or --pooling mean for vectors without it"
    )


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read ({summarize_error(error)}); download it again") from error


def _read_modes(folder: Path, source: ModelSource) -> tuple[str, ...]:
    config: Mapping[str, Any] = _read_json(folder / "config.json")
    value = config.get("pooling_mode")
    modes: Sequence[str] = [value] if isinstance(value, str) else value or []
    if not modes:
        modes = [mode for key, mode in MODES_BY_KEY.items() if config.get(key)] or ["mean"]
    if unknown := set(modes) - set(MODES_BY_KEY.values()):
        raise _make_error(source, folder.name, f"the pooling {format_list(sorted(unknown))} is not known")
    return tuple(modes)


def _read_linear_layer(folder: Path, source: ModelSource) -> DenseLayer:
    config = _read_json(folder / "config.json")
    activation = config.get("activation_function", "Tanh").split(".")[-1]
    if activation not in ACTIVATIONS:
        raise _make_error(source, folder.name, f"the activation function {activation} is not known")
    inputs = config.get("module_input_name", "sentence_embedding")
    outputs = config.get("module_output_name") or inputs
    if config.get("use_residual") or {inputs, outputs} != {"sentence_embedding"}:
        raise _make_error(source, folder.name, "it is more than a linear layer")
    if not (folder / WEIGHTS_FILE).is_file():
        raise _make_error(source, folder.name, f"it has no {WEIGHTS_FILE}")
    try:
        weights = load_file(folder / WEIGHTS_FILE)
    except (OSError, SafetensorError) as error:
        raise _make_error(source, folder.name, summarize_error(error)) from error
    if "linear.weight" not in weights:
        raise _make_error(source, folder.name, f"its {WEIGHTS_FILE} has no linear.weight")
    weight, bias = weights["linear.weight"], weights.get("linear.bias")
    return DenseLayer(
        folder.name, weight.float(), None if bias is None else bias.float(), ACTIVATIONS[activation]
    )
