"""Resolve `--model` to a local folder, and load config, tokenizer and model from this folder.

transformers only reads the local folder, so it cannot hang on network access.
"""

import copy
import dataclasses
import importlib.util
import inspect
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import safetensors
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open

from bertkit.data.hub import download_snapshot, summarize_error
from bertkit.errors import UserError, format_list, suggest_similar
from bertkit.settings.run_settings import PACKAGED_MODELS
from bertkit.utils.files import expand_home, is_path_syntax

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
ONNX_FILE = "model.onnx"  # the weights of an exported model
# Errors that transformers raises if a file of a model is missing or invalid.
LOAD_ERRORS = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
HEAD_KEY = "bertkit_head"  # in config.json: the type of the head, if it is not linear
# In config.json: the pooling, if it is not that of the architecture; and whether vectors have unit length.
POOLING_KEY, NORMALIZE_KEY = "bertkit_pooling", "bertkit_normalize"
INITIALIZER_KEY = "initializer_range"  # in config.json: standard deviation of initial weights
INITIALIZER_RANGE = 0.02  # its value in BERT, which new heads of all encoders use
TRAINED_LENGTH_KEY = "bertkit_trained_length"  # in config.json: see `get_trained_length`
CUSTOM_CODE_KEY = "auto_map"  # in config.json: classes in Python files of the model's repository
NO_LENGTH_LIMIT = 10**9  # the maximum length of a tokenizer without a limit is larger
PACKAGED_ALTERNATIVE = f"a path or {format_list(PACKAGED_MODELS)} (of the extra offline)"
# Architectures whose position embeddings start after the padding index, as in fairseq.
OFFSET_POSITION_TYPES = {
    "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "longformer", "roberta-prelayernorm",
    "data2vec-text", "ibert", "mpnet", "luke", "xmod",
}  # fmt: skip
UNSUPPORTED_TYPES = {
    "reformer": "is not supported, because it is only trained on multiples of a number of tokens",
    "xlnet": "is not supported, because its [CLS] is the last token of a text",
}


@dataclass(frozen=True)
class ModelSource:
    """A model that `--model`, or another flag or argument, resolved to."""

    name: str
    folder: Path
    is_new: bool = False  # created from scratch; `find_model` cannot resolve its name
    is_run: bool = False  # a run that the user passed, and not a model for `--model`
    flag: str = "--model"  # the flag or argument that the model was passed to

    @property
    def label(self) -> str:
        """The model in error messages."""
        return str(self.folder) if self.is_run else f"{self.flag} {self.name}"

    @property
    def fix(self) -> str:
        """What the user can do if a file of the model is damaged."""
        return "train the run again" if self.is_run else "use another model or download it again"

    @property
    def head_fix(self) -> str:
        """What the user can do if the head is damaged."""
        return "train the run again" if self.is_run else "pass --new-head"


LINEAR_TEXT_TYPE = "bertkit_linear_text"  # `model_type` of linear models of texts, unknown to transformers


def is_linear_text_model(folder: Path) -> bool:
    """Return whether a directory has a linear model of texts."""
    try:
        saved = json.loads((folder / CONFIG_FILE).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(saved, dict) and saved.get("model_type") == LINEAR_TEXT_TYPE


def load_linear_text_config(folder: Path) -> SimpleNamespace:
    """Return `config.json` of a linear model of texts, with the attributes of a config of transformers."""
    try:
        saved = json.loads((folder / CONFIG_FILE).read_text("utf-8"))
        labels = {int(index): str(label) for index, label in saved["id2label"].items()}
        return SimpleNamespace(**{**saved, "id2label": labels, "num_labels": len(labels)})
    except (*LOAD_ERRORS, RecursionError) as error:
        raise UserError(
            f"{folder}: its {CONFIG_FILE} cannot be used ({summarize_error(error)}); train the run again"
        ) from error


def choose_default_model() -> str:
    """Return `bert-base-uncased` if there is an accelerator, else `minilm`."""
    from bertkit.utils import devices  # imports torch

    return "bert-base-uncased" if devices.has_accelerator() else "minilm"


def find_model(
    model: str, flag: str = "--model", needs_weights: bool = True, alternative: str = PACKAGED_ALTERNATIVE
) -> ModelSource:
    """Resolve a packaged name, a path, or a Hub name to a model folder."""
    path = expand_home(model)
    if path.exists():
        source = ModelSource(path.resolve().name, path, flag=flag)
    elif model in PACKAGED_MODELS:
        module, folder = PACKAGED_MODELS[model]
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            raise UserError(f"{flag} {model}: is not installed; run pip install 'bertkit[offline]'")
        source = ModelSource(model, Path(spec.origin).parent / folder, flag=flag)
    elif is_path_syntax(model) or model.count("/") > 1:
        raise UserError(f"{flag} {model}: does not exist; check the path")
    else:
        kind, hint = "model" if needs_weights else "tokenizer", suggest_similar(model, PACKAGED_MODELS)
        fix = f"{hint} pass {alternative}".removeprefix("; ").strip()
        snapshot = download_snapshot(model, kind, flag=f"{flag} {model}", alternative=fix)
        source = ModelSource(model.split("/")[-1], snapshot, flag=flag)
    if not (source.folder / "config.json").is_file():
        raise UserError(
            f"{source.flag} {source.folder}: is not a model folder (no config.json); check the path"
        )
    if is_linear_text_model(source.folder):
        raise UserError(
            f"{source.flag} {source.folder}: is a linear model of texts, which has no encoder; pass a run of "
            "another method"
        )
    if needs_weights and not any(source.folder.glob("*.safetensors")):
        raise UserError(f"{source.flag} {source.folder}: {_describe_missing_weights(source.folder)}")
    return source


def _describe_missing_weights(folder: Path) -> str:
    if (folder / ONNX_FILE).is_file():
        return "is an exported model; pass the run that it was exported from"
    suffixes = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack")
    pickles = sorted(path.name for path in folder.iterdir() if path.name.endswith(suffixes))
    content = (
        f"only pickled weights ({format_list(pickles)}), which may run code" if pickles else "no weights"
    )
    return (
        f"has {content}; bertkit loads only *.safetensors: use a model that has them, or convert a model "
        "that you trust with transformers' save_pretrained"
    )


def find_run_model(run: Path) -> ModelSource:
    """Return the model of a run that the user passed."""
    return dataclasses.replace(find_model(str(run), "RUN"), is_run=True)


# ---- the config


def load_config(source: ModelSource) -> Any:
    from transformers import CONFIG_MAPPING, AutoConfig

    try:
        saved = json.loads((source.folder / "config.json").read_text("utf-8"))
        if not isinstance(saved, dict):
            raise ValueError("it is not a JSON object")
        # Many models name custom code although transformers has their architecture by now, which it uses.
        if saved.get(CUSTOM_CODE_KEY) and saved.get("model_type") not in CONFIG_MAPPING:
            raise _make_custom_code_error(source, "its config.json requires custom code (auto_map)")
        config = AutoConfig.from_pretrained(source.folder, trust_remote_code=False)
    except (*LOAD_ERRORS, StrictDataclassError) as error:
        raise UserError(
            f"{source.label}: its config.json cannot be used ({summarize_error(error)}); {source.fix}"
        ) from error
    if problem := UNSUPPORTED_TYPES.get(config.model_type):
        raise UserError(f"{source.label}: {config.model_type} {problem}; use another model")
    return config


def _make_custom_code_error(source: ModelSource, problem: str) -> UserError:
    return UserError(
        f"{source.label}: {problem}, which bertkit never runs; use a model whose architecture is part of "
        "transformers"
    )


# ---- the tokenizer


def load_tokenizer(source: ModelSource) -> Any:
    """Load the fast tokenizer, without the truncation and padding that some `tokenizer.json` files configure.

    The tokenizer always pads on the right. Padding on the left would shift the positions of BERT's tokens,
    and heads expect [CLS] at position 0.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(source.folder, trust_remote_code=False)
    except Exception as error:
        is_from_tokenizers = type(error) is Exception  # the tokenizers library raises no subclasses
        if not is_from_tokenizers and not isinstance(error, LOAD_ERRORS):
            raise
        raise UserError(
            f"{source.label}: its tokenizer cannot be loaded ({summarize_error(error)}); {source.fix}"
        ) from error
    if not tokenizer.is_fast or tokenizer.pad_token_id is None:
        raise UserError(
            f"{source.label}: has no fast tokenizer with a padding token (tokenizer.json); "
            + ("train the run again" if source.is_run else "use a model that has one")
        )
    # Without its files, transformers may return a tokenizer that only has special tokens.
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise UserError(f"{source.label}: its tokenizer has no vocabulary (tokenizer.json); {source.fix}")
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.padding_side = "right"
    return tokenizer


def add_tokens(tokenizer: Any, tokens: Sequence[str]) -> int:
    """Add tokens that are found in the text before it is normalized; return the number of new ones.

    They are not special tokens, so that they are found although bertkit tokenizes special tokens as text.
    """
    from transformers import AddedToken

    new_tokens = [AddedToken(token, normalized=False, special=False) for token in tokens]
    num_added: int = tokenizer.add_tokens(new_tokens)
    return num_added


def count_token_ids(tokenizer: Any) -> int:
    """Return the largest token id plus 1. It exceeds the number of tokens if some ids are not used."""
    return 1 + max(tokenizer.get_vocab().values())


def count_missing_embeddings(model_config: Any, tokenizer: Any) -> int:
    """Return how many embeddings the model lacks for the tokens of its tokenizer."""
    num_embeddings = getattr(model_config, "vocab_size", None)
    return 0 if num_embeddings is None else max(0, count_token_ids(tokenizer) - num_embeddings)


def count_token_types(tokenizer: Any) -> int:
    """Return the largest token type that the tokenizer gives to a pair of texts plus 1."""
    return 1 + max(tokenizer.backend_tokenizer.encode("a", "a").type_ids, default=0)


def require_token_types(source: ModelSource, model_config: Any, tokenizer: Any) -> None:
    """Check that the model has each token type that its tokenizer gives to a pair of texts.

    Models with one token type get none; see `takes_token_type_ids`.
    """
    num_types = getattr(model_config, "type_vocab_size", None)
    if num_types and has_token_types(model_config) and count_token_types(tokenizer) > num_types:
        raise UserError(
            f"{source.label}: its tokenizer gives the token type {count_token_types(tokenizer) - 1}, but its "
            f"weights have only {num_types} token types (0 to {num_types - 1}); correct the type ids in the "
            "post_processor of tokenizer.json, or use another model"
        )


def require_embeddings(source: ModelSource, model_config: Any, tokenizer: Any) -> None:
    """Check that the model has an embedding for each token and each token type of its tokenizer.

    PyTorch would fail at the first text that contains a token without embedding, on a GPU for good.
    """
    require_token_types(source, model_config, tokenizer)
    if count_missing_embeddings(model_config, tokenizer):
        num_ids = count_token_ids(tokenizer)
        fix = (
            source.fix
            if source.is_run
            else f"add them with transformers' resize_token_embeddings({num_ids}), and save the model"
        )
        raise UserError(
            f"{source.label}: its tokenizer has {num_ids:,} token ids, but its weights only "
            f"{model_config.vocab_size:,} embeddings; {fix}"
        )


def adapt_to_tokenizer(model: Any, tokenizer: Any) -> None:
    """Add what the model lacks: embeddings of tokens, near the mean of the others, and the padding token.

    The heads of left-to-right models look for the last token that is not padding.
    """
    if count_missing_embeddings(model.config, tokenizer):
        model.resize_token_embeddings(count_token_ids(tokenizer))
    if getattr(model.config, "pad_token_id", None) is None:
        model.config.pad_token_id = tokenizer.pad_token_id


# ---- the model


def load_model(
    auto_class: Any, source: ModelSource, config: Any, new_head: bool = False, may_lack_head: bool = False
) -> Any:
    """Load the model in fp32. A new head is initialized with a standard deviation of 0.02.

    The pooler of BERT is part of the head here: `AutoModel` returns it, but vectors do not depend on it.
    """
    head_config = copy.deepcopy(config)
    if hasattr(config, INITIALIZER_KEY):  # may be larger in narrow encoders, but is not meant for heads
        setattr(head_config, INITIALIZER_KEY, INITIALIZER_RANGE)
    model, missing_keys = _load(auto_class, source, head_config, ignore_mismatched_sizes=new_head)
    # Only weights of a new head may be missing: transformers initializes missing weights silently.
    is_encoder = model.base_model is model
    encoder_prefix = "" if is_encoder else model.base_model_prefix + "."
    may_lack_head = new_head or may_lack_head
    required = sorted(
        name
        for name in missing_keys
        if not ((is_encoder or may_lack_head) and "pooler" in name)
        and not (may_lack_head and not name.startswith(encoder_prefix))
    )
    if required:
        raise UserError(
            f"{source.label}: its weights do not fit its config.json ({format_list(required)}: missing or of "
            f"another size); {source.fix}"
        )
    if new_head:
        # transformers keeps the saved output layer if its shape fits, even if it is that of another task.
        output_sizes = ((1,), (model.config.num_labels,))  # multiple-choice heads have one output
        output_layer = {
            name
            for name, tensor in model.state_dict().items()
            if not name.startswith(model.base_model_prefix + ".") and tensor.shape[:1] in output_sizes
        }
        if output_layer - missing_keys:
            random_weights = auto_class.from_config(model.config).state_dict()
            model.load_state_dict({name: random_weights[name] for name in output_layer}, strict=False)
    if hasattr(config, INITIALIZER_KEY):
        setattr(model.config, INITIALIZER_KEY, getattr(config, INITIALIZER_KEY))
    return model


def load_with_trained_head(auto_class: Any, source: ModelSource, config: Any, head: str, fix: str) -> Any:
    """Load the model with its trained head, in fp32."""
    model, missing_keys = _load(auto_class, source, config, ignore_mismatched_sizes=False)
    if missing_keys:
        raise UserError(f"{source.name}: its weights have no {head}; {fix}")
    return model


def _load(
    auto_class: Any, source: ModelSource, config: Any, ignore_mismatched_sizes: bool
) -> tuple[Any, set[str]]:
    """Return the model, and the names of its parameters that are missing in the file, or have other sizes."""
    try:
        model, info = auto_class.from_pretrained(
            source.folder, config=config, dtype="float32", use_safetensors=True, trust_remote_code=False,
            ignore_mismatched_sizes=ignore_mismatched_sizes, output_loading_info=True,
        )  # fmt: skip
    except (*LOAD_ERRORS, RuntimeError, safetensors.SafetensorError) as error:
        raise_if_head_is_missing(error, source, auto_class, config)
        raise UserError(
            f"{source.label}: its weights cannot be loaded ({summarize_error(error)}); {source.fix}"
        ) from error
    if vars(model.config).pop(CUSTOM_CODE_KEY, None) is not None:
        # Models with other heads lack the pooler, so it does not count.
        prefix = model.base_model_prefix + "."
        missing = [key for key in info["missing_keys"] if model.base_model is model or key.startswith(prefix)]
        unexpected = [key for key in info["unexpected_keys"] if key.startswith(prefix)]
        if any("pooler" not in key and "position_ids" not in key for key in missing + unexpected):
            raise _make_custom_code_error(source, "its weights are those of custom code (auto_map)")
    for key in (HEAD_KEY, POOLING_KEY, NORMALIZE_KEY):  # describe the saved head; a new head sets its own
        vars(model.config).pop(key, None)
    return model, {*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])}


def raise_if_head_is_missing(error: BaseException, source: ModelSource, auto_class: Any, config: Any) -> None:
    """Raise a `UserError` if transformers has no class for an architecture with the head of an auto class."""
    if str(error).startswith("Unrecognized configuration class"):
        words = re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z]+", auto_class.__name__.removeprefix("AutoModelFor"))
        head = " ".join(word if word.isupper() else word.lower() for word in words)
        raise UserError(
            f"{source.label}: transformers has no {head} head for {config.model_type}; use another model"
        ) from error


# ---- names and tensors of a file of weights


def list_weight_names(folder: Path) -> set[str]:
    """Return the names of the weights in a folder."""
    names: set[str] = set()
    for path in folder.glob("*.safetensors"):
        try:
            with safe_open(path, "pt") as file:
                names.update(file.keys())
        except (OSError, SafetensorError) as error:
            raise UserError(
                f"{path}: cannot be read ({summarize_error(error)}); download it again"
            ) from error
    return names


def read_weights(folder: Path, is_wanted: Callable[[str], bool]) -> dict[str, Any]:
    """Return the weights whose names `is_wanted` accepts, by name, from a single file or from shards."""
    single_file = folder / WEIGHTS_FILE
    tensors: dict[str, Any] = {}
    for path in [single_file] if single_file.exists() else folder.glob("model-*.safetensors"):
        with safe_open(path, "pt") as file:
            tensors |= {name: file.get_tensor(name) for name in filter(is_wanted, file.keys())}
    return tensors


# ---- what a config says about the inputs


def get_max_positions(config: Any) -> int | None:
    """Return the maximum number of tokens of a sequence, or None if the architecture has no limit.

    DeBERTa without absolute positions has none: its relative positions are limited to a distance.
    """
    return get_num_positions(config) if getattr(config, "position_biased_input", True) else None


def get_num_positions(config: Any) -> int | None:
    """Return the number of tokens for which a model has positions, or None if it does not state one."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and positions < 1:
        return None
    if positions is not None and config.model_type in OFFSET_POSITION_TYPES:
        return positions - (config.pad_token_id or 0) - 1
    return positions


def get_trained_length(config: Any, tokenizer: Any) -> int | None:
    """Return the sequence length up to which the positions of a model were trained, or None without a limit.

    The config of a run of bertkit states it. For other models, it is the maximum length of the tokenizer, or
    the number of positions if that is smaller. The maximum length of a run's tokenizer is only that of its
    last training: a run that was fine-tuned on short texts can have more trained positions.
    """
    if (trained_length := getattr(config, TRAINED_LENGTH_KEY, None)) is not None:
        return int(trained_length)
    limits = [get_num_positions(config), tokenizer.model_max_length]
    return min((limit for limit in limits if limit and limit < NO_LENGTH_LIMIT), default=None)


def takes_token_type_ids(model: Any) -> bool:
    """Return whether the model and its encoder both accept `token_type_ids`, and know several of them.

    A model with one token type (RoBERTa) sets all ids to 0 if it gets none. A tokenizer made for another
    model (a BERT vocabulary for RoBERTa weights) may return 1 for the second text, which has no embedding.
    """
    return has_token_types(getattr(model.base_model, "config", None)) and all(
        "token_type_ids" in inspect.signature(type(module).forward).parameters
        for module in (model, model.base_model)
    )


def has_token_types(config: Any) -> bool:
    """Return whether a model has several token types, or does not state their number."""
    return bool(getattr(config, "type_vocab_size", 2) > 1)


def select_inputs(model: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch that was collated for another model, without token type ids that this one ignores."""
    if takes_token_type_ids(model):
        return batch
    return {name: value for name, value in batch.items() if name != "token_type_ids"}
