"""The base class of bertkit's own models: an encoder that `AutoModel` loads, and a head."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModel
from transformers.modeling_outputs import ModelOutput, TokenClassifierOutput

from bertkit.data.hub import summarize_error
from bertkit.errors import UserError, format_list
from bertkit.models.heads import (
    TAGGER_HEAD,
    VECTOR_HEAD,
    BiLstm,
    ScalarMix,
    compute_mean_vectors,
    get_head_dropout,
    get_pooled_positions,
    has_head,
    is_causal,
)
from bertkit.models.loading import (
    HEAD_KEY,
    INITIALIZER_RANGE,
    NORMALIZE_KEY,
    POOLING_KEY,
    WEIGHTS_FILE,
    ModelSource,
    load_model,
    read_weights,
    takes_token_type_ids,
)
from bertkit.models.replaced_tokens import ReplacedTokenModel
from bertkit.settings.run_settings import Head
from bertkit.settings.setting import Pooling
from bertkit.utils.compat import enable_activation_checkpointing


class EncoderWithHead(nn.Module):
    """An encoder with a head that transformers does not know.

    The submodules of the head must not have the names of those in transformers' heads, such as "classifier".
    A model of transformers would otherwise load the saved weights of the head, and predict wrongly.

    Args:
        encoder: An encoder loaded by `AutoModel`, whose config contains the labels.
    """

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.config = encoder.config
        self.base_model_prefix = encoder.base_model_prefix
        self.add_module(self.base_model_prefix, encoder)  # AutoModel expects the weights under this name

    @property
    def base_model(self) -> Any:
        """The encoder, as in transformers' models."""
        return getattr(self, self.base_model_prefix)

    def select_inputs(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor | None
    ) -> dict[str, torch.Tensor]:
        """Return the inputs of the encoder, with the token type ids if it takes them."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None and takes_token_type_ids(self.base_model):
            inputs["token_type_ids"] = token_type_ids
        return inputs

    def load_head(self, source: ModelSource) -> None:
        """Load the weights of the head, all of which must exist.

        Raises:
            UserError: The weights cannot be read, or do not match.
        """
        encoder_prefix = self.base_model_prefix + "."
        try:
            saved = read_weights(source.folder, lambda name: not name.startswith(encoder_prefix))
            missing, unexpected = self.load_state_dict(saved, strict=False)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1].strip()
            raise UserError(
                f"{source.label}: its head does not match ({reason}); {source.head_fix}"
            ) from error
        missing_in_head = [name for name in missing if not name.startswith(encoder_prefix)]
        mismatched = sorted([*unexpected, *missing_in_head])
        if mismatched:
            raise UserError(
                f"{source.label}: its head does not match "
                f"(missing or unknown: {format_list(mismatched)}); {source.head_fix}"
            )

    # ---- methods of transformers' models that bertkit calls

    def get_input_embeddings(self) -> nn.Module:
        """Return the word embeddings."""
        return self.base_model.get_input_embeddings()

    def resize_token_embeddings(self, num_tokens: int) -> None:
        """Change the number of word embeddings."""
        self.base_model.resize_token_embeddings(num_tokens)

    def activation_checkpointing_enable(self, **kwargs: Any) -> None:
        """Enable activation checkpointing in the encoder."""
        enable_activation_checkpointing(self.base_model, kwargs)

    gradient_checkpointing_enable = activation_checkpointing_enable  # its name until transformers 5.23

    def save_pretrained(
        self, folder: str | Path, state_dict: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        """Write `config.json` and a single file of weights. `AutoModel` can load the encoder from them."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        self.config.save_pretrained(folder)
        weights = {
            name: tensor.cpu().contiguous() for name, tensor in (state_dict or self.state_dict()).items()
        }
        save_file(weights, Path(folder) / WEIGHTS_FILE, metadata={"format": "pt"})


# By name: a slice of the hidden states (0: embeddings, 1 to L: layers), and how several are combined.
FEATURE_LAYERS: dict[str, tuple[slice, Literal["concat", "sum"]]] = {
    "last": (slice(-1, None), "concat"),
    "second-to-last": (slice(-2, -1), "concat"),
    "sum-last-4": (slice(-4, None), "sum"),
    "concat-last-4": (slice(-4, None), "concat"),
    "sum-all": (slice(1, None), "sum"),
    "embeddings": (slice(0, 1), "concat"),
}
FEATURES_KEY = "bertkit_features"  # key in config.json


def select_layers(config: Any, features: str | None) -> list[int]:
    """Return the indices of the hidden states that `features` selects (0: embeddings, 1 to L: layers).

    None selects the last layer.

    Raises:
        UserError: The encoder has too few layers.
    """
    num_layers = config.num_hidden_layers
    if features is not None and num_layers < _count_required_layers(features):
        possible = format_list(name for name in FEATURE_LAYERS if num_layers >= _count_required_layers(name))
        required = _count_required_layers(features)
        raise UserError(
            f"--features {features}: requires {required} layers, and the model has {num_layers}; "
            f"use one of {possible}"
        )
    return list(range(num_layers + 1))[FEATURE_LAYERS[features or "last"][0]]


def _count_required_layers(features: str) -> int:
    return abs(FEATURE_LAYERS[features][0].start)


class Tagger(EncoderWithHead):
    """A token classifier that consists of an encoder, an optional BiLSTM, and a linear layer.

    Args:
        encoder: An encoder loaded by `AutoModel`, whose config contains the labels.
        features: A name in `FEATURE_LAYERS`. None selects the last layer of an encoder that is trained with
            the head; otherwise, the encoder is frozen.
        head: Type of the head, "linear" or "bilstm".
    """

    def __init__(self, encoder: Any, features: str | None, head: Head) -> None:
        super().__init__(encoder)
        config = self.config
        self.layers = select_layers(config, features)
        self.layer_combination = FEATURE_LAYERS[features or "last"][1]
        self.features = features
        self.config.update({FEATURES_KEY: features, HEAD_KEY: head, "architectures": [TAGGER_HEAD]})
        self.mix = ScalarMix(len(self.layers)) if self.layer_combination == "sum" else None
        dropout = get_head_dropout(config)
        size = config.hidden_size * (len(self.layers) if self.layer_combination == "concat" else 1)
        self.bilstm = BiLstm(size, config.hidden_size, dropout) if head == "bilstm" else None
        self.dropout = nn.Dropout(dropout)
        # Not named "classifier", since a model of transformers would load the layer without the BiLSTM.
        self.output = nn.Linear(
            2 * config.hidden_size if self.bilstm is not None else size, config.num_labels
        )
        nn.init.normal_(self.output.weight, std=INITIALIZER_RANGE)
        nn.init.zeros_(self.output.bias)
        encoder.requires_grad_(features is None)
        self.train(self.training)

    def train(self, mode: bool = True) -> "Tagger":
        """Set the mode, except for a frozen encoder, whose vectors dropout would change."""
        super().train(mode)
        if self.features is not None:
            self.base_model.eval()
        return self

    def compute_hidden_states(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the hidden states of the selected layers [batch, seq_len, layers, hidden].

        A frozen encoder always computes in fp32, and its hidden states are rounded to fp16 as in the cache.
        Scores are then the same with and without the cache.
        """
        inputs = self.select_inputs(input_ids, attention_mask, token_type_ids)
        if self.features is None:
            return self.base_model(**inputs).last_hidden_state.unsqueeze(2)
        with torch.no_grad(), torch.autocast(input_ids.device.type, enabled=False):
            states = self.base_model(**inputs, output_hidden_states=True).hidden_states
            seq_len = input_ids.shape[1]  # models with block-sparse attention return longer states
            selected = torch.stack([states[layer][:, :seq_len] for layer in self.layers], 2)
            return selected.half().float()

    def forward(
        self, input_ids: torch.Tensor | None = None, attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None, vectors: torch.Tensor | None = None, **_: Any,
    ) -> TokenClassifierOutput:  # fmt: skip
        """Return logits [batch, seq_len, num_labels].

        Args:
            input_ids: [batch, seq_len] tokens, or None if `vectors` are passed.
            attention_mask: [batch, seq_len], 0 at padding; None without padding.
            token_type_ids: [batch, seq_len], or None.
            vectors: Result of `compute_hidden_states`, which replaces the tokens.
        """
        inputs = input_ids if vectors is None else vectors
        assert inputs is not None
        if attention_mask is None:
            attention_mask = torch.ones(inputs.shape[:2], dtype=torch.long, device=inputs.device)
        if vectors is None:
            vectors = self.compute_hidden_states(inputs, attention_mask, token_type_ids)
        combined = self.mix(vectors) if self.mix is not None else vectors.flatten(2)
        if self.bilstm is not None:
            combined = self.bilstm(combined, attention_mask)
        return TokenClassifierOutput(logits=self.output(self.dropout(combined)))

    def activation_checkpointing_enable(self, **kwargs: Any) -> None:
        """Enable activation checkpointing in the encoder. A frozen encoder stores no activations."""
        if self.features is None:
            super().activation_checkpointing_enable(**kwargs)

    gradient_checkpointing_enable = activation_checkpointing_enable  # its name until transformers 5.23


def load_tagger(
    source: ModelSource, model_config: Any, features: str | None, head: Head, new_head: bool
) -> Tagger:
    """Load a tagger: the encoder, and also the head unless a new head is requested.

    Args:
        source: The model whose weights are loaded.
        model_config: The model's config.
        features: Layers of a frozen encoder, or None, see `Tagger`.
        head: Type of the head.
        new_head: Whether to initialize a new head.

    Raises:
        UserError: The encoder has too few layers, the weights cannot be read, or the saved head differs from
            the requested one.
    """
    select_layers(model_config, features)
    if not new_head:
        _check_head(source, model_config, features, head)
    model = Tagger(load_model(AutoModel, source, model_config), features, head)
    if not new_head:
        model.load_head(source)
    return model


def _check_head(source: ModelSource, config: Any, features: str | None, head: Head) -> None:
    if not has_head(config, TAGGER_HEAD):
        fix = source.fix if source.is_run else "pass --new-head to initialize one"
        raise UserError(f"{source.label}: has no head of the requested kind; {fix}")
    saved_features, saved_head = getattr(config, FEATURES_KEY, None), getattr(config, HEAD_KEY, None)
    if (saved_features, saved_head) != (features, head):
        features_flag = f"--features {saved_features}" if saved_features else "no --features"
        fix = "pass the same, or --new-head to initialize another head"
        raise UserError(
            f"{source.label}: its head was trained with --head {saved_head} and {features_flag}; "
            f"{source.fix if source.is_run else fix}"
        )


MODULES_FILE, POOLING_FOLDER = "modules.json", "1_Pooling"
MODULES_PACKAGE = "sentence_transformers."  # start of the types of its own modules; others are custom code
# Settings of the module `Transformer`: sentence_bert_config.json; older names have the architecture.
TRANSFORMER_FILES = "sentence_*_config.json"
PROMPTS_FILE = "config_sentence_transformers.json"
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
class LinearLayer:
    """A module `Dense`: `activation(x @ weight.T + bias)`.

    Attributes:
        name: Its folder.
        weight: `[out_features, in_features]`.
        bias: `[out_features]`, or None.
        activation: Function of the outputs.
    """

    name: str
    weight: torch.Tensor
    bias: torch.Tensor | None
    activation: Callable[[torch.Tensor], torch.Tensor]

    def compute(self, vectors: torch.Tensor) -> torch.Tensor:
        """Turn `[batch, in_features]` into `[batch, out_features]`."""
        bias = None if self.bias is None else self.bias.to(vectors.device)
        return self.activation(torch.nn.functional.linear(vectors, self.weight.to(vectors.device), bias))


@dataclass(frozen=True)
class SentenceModules:
    """How the hidden states of a text become one vector.

    Attributes:
        modes: Pooling modes, whose vectors are concatenated.
        linear_layers: The linear layers after the pooling.
        normalize: Whether vectors are scaled to unit length at the end.
    """

    modes: tuple[str, ...] = ("cls",)
    linear_layers: tuple[LinearLayer, ...] = ()
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

        Args:
            states: `[batch, seq_len, hidden_size]` in fp32; padding is on the right.
            lengths: `[batch]` number of tokens of each text.
        """
        vectors = torch.cat([_pool(states, lengths, mode) for mode in self.modes], -1)
        for layer in self.linear_layers:
            vectors = layer.compute(vectors)
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
    """Return the modules that a model was trained with; None for models without them.

    Args:
        source: The model; that of sentence-transformers has files of its modules.
        config: The model's config, which has the pooling mode if bertkit trained the model.

    Raises:
        UserError: A file cannot be read, or bertkit cannot compute a module.
    """
    if pooling := getattr(config, POOLING_KEY, None):
        return SentenceModules((str(pooling),))
    if not (source.folder / MODULES_FILE).is_file():
        folder = source.folder / POOLING_FOLDER
        return SentenceModules(_read_modes(folder, source)) if folder.is_dir() else None
    modes: tuple[str, ...] = ()
    linear_layers: list[LinearLayer] = []
    normalize = False
    for number, (type, path) in enumerate(_read_modules(source.folder / MODULES_FILE)):
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


def read_default_prompt(source: ModelSource) -> str | None:
    """Return the text that sentence-transformers puts before each text by default, or None."""
    path = source.folder / PROMPTS_FILE
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
    path = next(source.folder.glob(TRANSFORMER_FILES), None)
    settings = {} if path is None else _read_json(path)
    return settings if isinstance(settings, dict) else {}


def _read_modules(path: Path) -> list[tuple[str, str]]:
    """Return the type and the path of each module."""
    try:
        return [(str(module["type"]), str(module["path"])) for module in _read_json(path)]
    except (TypeError, KeyError) as error:
        raise UserError(f"{path}: is not a list of modules with type and path; download it again") from error


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
    """Return the modes of a module `Pooling`."""
    config: Mapping[str, Any] = _read_json(folder / "config.json")
    value = config.get("pooling_mode")
    modes: Sequence[str] = [value] if isinstance(value, str) else value or []
    if not modes:
        modes = [mode for key, mode in MODES_BY_KEY.items() if config.get(key)] or ["mean"]
    if unknown := set(modes) - set(MODES_BY_KEY.values()):
        raise _make_error(source, folder.name, f"the pooling {format_list(sorted(unknown))} is not known")
    return tuple(modes)


def _read_linear_layer(folder: Path, source: ModelSource) -> LinearLayer:
    """Return the linear layer of a module `Dense`."""
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
    return LinearLayer(
        folder.name, weight.float(), None if bias is None else bias.float(), ACTIVATIONS[activation]
    )


@dataclass
class VectorClassifierOutput(ModelOutput):
    """Output of `VectorClassifier`.

    Attributes:
        logits: [batch, num_labels].
        vectors: [batch, hidden_size] the vector of each text, which the linear layer reads.
    """

    logits: torch.Tensor | None = None
    vectors: torch.Tensor | None = None


class VectorClassifier(EncoderWithHead):
    """A linear classifier of the vectors of texts.

    Args:
        encoder: An encoder loaded by `AutoModel`, whose config contains the labels.
        pooling: How the last layer becomes one vector: "mean" over all tokens except padding, or "cls" for
            the vector of [CLS] (in a causal model, of the last token).
        normalize: Whether to scale vectors to unit length.
    """

    def __init__(self, encoder: Any, pooling: Pooling, normalize: bool) -> None:
        super().__init__(encoder)
        self.set_pooling(pooling, normalize)
        self.config.update({"architectures": [VECTOR_HEAD]})
        self.output = nn.Linear(self.config.hidden_size, self.config.num_labels)
        self.output.requires_grad_(False)

    def set_pooling(self, pooling: Pooling, normalize: bool) -> None:
        """Choose the vectors of texts, also in the config; see the arguments of the class."""
        self.pooling, self.normalize = pooling, normalize
        self.config.update({POOLING_KEY: pooling, NORMALIZE_KEY: normalize})

    def set_output_layer(self, weight: np.ndarray, bias: np.ndarray) -> None:
        """Set the linear layer.

        Args:
            weight: [num_labels, hidden_size].
            bias: [num_labels].
        """
        with torch.no_grad():
            self.output.weight.copy_(torch.from_numpy(weight))
            self.output.bias.copy_(torch.from_numpy(bias))

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None, **_: Any,
    ) -> VectorClassifierOutput:  # fmt: skip
        """Return logits and vectors.

        Args:
            input_ids: [batch, seq_len] tokens.
            attention_mask: [batch, seq_len], 0 at padding; None without padding.
            token_type_ids: [batch, seq_len], or None.
        """
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        inputs = self.select_inputs(input_ids, attention_mask, token_type_ids)
        vectors = self._pool(self.base_model(**inputs).last_hidden_state.float(), attention_mask)
        return VectorClassifierOutput(logits=self.output(vectors), vectors=vectors)

    def _pool(self, states: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Turn hidden states [batch, seq_len, hidden_size] into vectors [batch, hidden_size]."""
        if self.pooling == "cls":
            positions = get_pooled_positions(attention_mask, is_causal(self.config))[:, 0]
            vectors = states[torch.arange(len(positions), device=states.device), positions]
        else:
            vectors = compute_mean_vectors(states, attention_mask)
        return nn.functional.normalize(vectors) if self.normalize else vectors


def read_vector_pooling(source: ModelSource, model_config: Any) -> Pooling:
    """Return the pooling that a model was trained with; "mean" if it is not known.

    Raises:
        UserError: The model was trained with another pooling.
    """
    modules = read_sentence_modules(source, model_config)
    pooling = "mean" if modules is None else modules.pooling
    if pooling == "mean":
        return "mean"
    if pooling == "cls" or (pooling == "lasttoken" and is_causal(model_config)):
        return "cls"
    raise UserError(
        f"{source.label}: was trained with {pooling} pooling, but --method contrastive reads cls or mean; "
        "use another model, or omit --method"
    )


def load_vector_classifier(
    source: ModelSource, model_config: Any, new_head: bool, pooling: Pooling
) -> VectorClassifier:
    """Load a classifier: the encoder, and also the head of a finished run unless a new head is requested.

    A new head reads vectors of unit length.

    Args:
        source: The model whose weights are loaded.
        model_config: The model's config.
        new_head: Whether to initialize a new head.
        pooling: See `VectorClassifier`.

    Raises:
        UserError: The weights cannot be read or do not match.
    """
    normalize = new_head or getattr(model_config, NORMALIZE_KEY)
    if is_causal(model_config):
        model_config.use_cache = False  # the key/value cache only serves generation
    model = VectorClassifier(load_model(AutoModel, source, model_config), pooling, normalize)
    if not new_head:
        model.load_head(source)
    return model


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
