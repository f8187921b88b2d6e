"""The prediction of new rows with a finished run, an ensemble, or an exported model."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertkit.data.table import CHUNK_ROWS, Rows, chunk_records
from bertkit.errors import UserError, format_list
from bertkit.models import loading
from bertkit.models.linear_text import LinearTextModel, is_linear_text_model
from bertkit.models.loading import ONNX_FILE, ModelSource
from bertkit.models.pretraining import MASKED_POSITIONS
from bertkit.run_directory import RunDir
from bertkit.settings.declaration import get_column_settings
from bertkit.tasks.base import Evaluation, Outputs, ScoreDetail, Task, merge_prediction
from bertkit.tasks.trained_model import TrainedModel, build_trained_model, combine_models, load_run_task
from bertkit.utils import devices
from bertkit.utils.compat import require_extra
from bertkit.utils.files import expand_home
from bertkit.utils.reporting import report_info, report_warning, silence_libraries
from bertkit.utils.system import resume_collection

CPU_PROVIDER, CUDA_PROVIDER = "CPUExecutionProvider", "CUDAExecutionProvider"  # of onnxruntime
VOCABULARY_OUTPUTS = ("prediction_logits", "logits")  # output names of language modeling heads


@dataclass(frozen=True)
class Predictor(TrainedModel):
    """A task with its model and tokenizer, which predicts new rows.

    Truncation, windows, pooling and decoding are the same as in training, because the same code runs.
    """

    columns: Mapping[str, Any] = field(default_factory=dict)  # by setting; they replace those of training

    def predict(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield one record for each row, in the order of the rows, with the keys of `predictions.jsonl`.

        Rows are read in chunks, so `rows` may be an iterator of any length.
        """

        def validate(row: Mapping[str, Any]) -> dict[str, Any]:
            if not isinstance(row, Mapping):
                raise UserError(
                    f"rows: expected dictionaries of columns, found {row!r}; pass rows such as "
                    "{'text': '...'}"
                )
            return dict(row)

        chunks = chunk_records(enumerate(map(validate, rows), start=1), "rows", CHUNK_ROWS)
        for chunk in align_chunks_to_groups(self.task, chunks):
            self.map_columns(chunk)
            yield from self.iter_records(chunk, self.evaluate_without_labels(chunk))

    def map_columns(self, rows: Rows) -> None:
        """Make the task read the columns of new rows, and report them if they differ from training."""
        trained_columns = self.task.input_schema.text_columns
        self.task.map_columns(rows, self.columns)
        if self.task.input_schema.text_columns != trained_columns:
            columns = format_list(self.task.input_schema.text_columns)
            report_info(
                f"reading columns {columns} in place of the training columns {format_list(trained_columns)}"
            )

    def evaluate_without_labels(self, rows: Rows, description: str = "scoring") -> Evaluation:
        """Predict rows without using their labels."""
        gold = self.task.input_schema.gold_columns
        inputs = {name: values for name, values in rows.columns.items() if name not in gold}
        parsed, _ = self.task.parse_rows(rows.replace_columns(inputs))
        return self.task.evaluate(self.compute_outputs(parsed, description))

    def copy_columns_from(self, other: Task) -> "Predictor":
        """Copy the column settings of another task; return this predictor."""
        self.task.resolve(**get_column_settings(other.config))
        self.task.load_state(self.model.config)
        return self

    def use_columns(self, columns: Mapping[str, Any]) -> "Predictor":
        """Return a predictor that reads these columns, by setting, instead of those of training."""
        return dataclasses.replace(self, columns=columns)

    def use_batch_size(self, batch_size: int | None) -> "Predictor":
        """Set the number of rows per batch, unless it is None; return this predictor."""
        if batch_size:
            self.task.resolve(eval_batch_size=batch_size)
        return self

    @property
    def loaded_models(self) -> list[Any]:
        """The models with one encoder each: that of the run, or those of an ensemble; not an exported one."""
        models = getattr(self.model, "members", [self.model])
        return [model for model in models if not isinstance(model, OnnxModel)]

    def iter_records(
        self,
        rows: Rows,
        evaluation: Evaluation,
        scores: ScoreDetail = "default",
        added: Iterable[Mapping[str, Any]] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Yield records as in `predictions.jsonl`: an id, the input columns and the prediction.

        The key `gold` is left out. Gold labels appear only as a column of the input. `rows` are the rows
        before they were parsed, and `added` further keys of each prediction.
        """
        inputs = self.task.input_schema
        parsed = evaluation.outputs.rows
        first_id = int(rows.row_numbers[0]) - 1 if len(rows) else 0
        gold = {name: rows[name] for name in inputs.gold_columns if name in rows.columns}
        output_rows = parsed
        if len(rows) == len(parsed):  # unless normalization has changed the number of rows
            columns = {**parsed.columns, **gold}
            output_rows = rows.replace_columns(
                {name: columns[name] for name in [*rows.columns, *columns] if name in columns}
            )
        hidden = inputs.hidden_columns - set(gold)
        added = repeat({}, len(output_rows)) if added is None else added
        predictions = zip(output_rows, evaluation.iter_records(scores), added, strict=True)
        for row_id, (row, prediction, further) in enumerate(predictions, first_id):
            prediction.pop("gold", None)
            yield merge_prediction(row_id, row, hidden, {**prediction, **further})


@dataclass(frozen=True)
class LinearTextPredictor(Predictor):
    """A predictor whose model is linear in texts, and has no tokenizer."""

    def compute_outputs(self, rows: Rows, description: str = "scoring") -> Outputs:
        task: Any = self.task
        columns = [list(rows[name]) for name in task.input_schema.text_columns]
        return Outputs(self.model.compute_logits(columns), task.encode_rows(rows), rows)

    @property
    def loaded_models(self) -> list[Any]:
        return []


def align_chunks_to_groups(task: Task, chunks: Iterable[Rows]) -> Iterator[Rows]:
    """Regroup rows into chunks that never split a group, such as the sentences of a document."""
    pending: Rows | None = None
    for chunk in chunks:
        pending = chunk if pending is None else Rows.concatenate([pending, chunk])
        groups = task.input_schema.get_group_ids(pending)
        # the first row of the last group, which may have more rows in the next chunk
        end = len(pending)
        if groups is not None:
            starts = (index for index in range(end - 1, 0, -1) if groups[index] != groups[index - 1])
            end = next(starts, 0)
        if end:
            yield pending.select(range(end))
            pending = pending.select(range(end, len(pending)))
    if pending is not None and len(pending):
        yield pending


def load_predictor(run: str | Path, keep_stock_layers: bool = False) -> Predictor:
    """Load a finished run, an exported model or an ensemble, also that of a study, for prediction.

    With `keep_stock_layers`, the model stays as transformers builds it, on the CPU, to be exported.
    """
    run_dir = expand_home(run)
    if folders := RunDir(run_dir).find_members():
        return combine_models(folders, [load_predictor(member) for member in folders])
    task = load_run_task(run_dir)
    if not task.definition.predicts_rows:
        raise UserError(
            f"{run}: is a run of {task.definition.name}, which does not predict rows; "
            f"use bertkit fill-mask {run} or bertkit embed {run}"
        )
    if is_linear_text_model(run_dir):
        linear_model = LinearTextModel.load(run_dir)
        task.load_state(linear_model.config)
        return LinearTextPredictor(task, linear_model, None)
    onnx_source = find_onnx_model(run_dir)
    if onnx_source is None:
        trained = build_trained_model(task, loading.find_run_model(run_dir), keep_stock_layers)
        return Predictor(trained.task, trained.model, trained.tokenizer)
    task.use_cache = False
    with silence_libraries():
        task.load_state(loading.load_config(onnx_source))
        model, tokenizer = _load_onnx_model(onnx_source.folder), loading.load_tokenizer(onnx_source)
    resume_collection()
    return Predictor(task, model, tokenizer)


# ---- exported models


class OnnxOutput(dict[str, torch.Tensor]):
    """Output tensors that, as in transformers, are both items and attributes."""

    __getattr__ = dict.__getitem__


class OnnxModel(nn.Module):
    """A model for inference whose forward pass runs an ONNX graph.

    The graph runs on the GPU of this number, if onnxruntime can use it, or else on the CPU with as many
    threads as PyTorch uses. Inputs and outputs of `forward` are on the CPU. Inputs that the graph does not
    have are ignored.
    """

    def __init__(self, path: Path, gpu: int | None = None) -> None:
        import onnxruntime

        super().__init__()
        providers: list[Any] = [CPU_PROVIDER]
        if gpu is not None and CUDA_PROVIDER in onnxruntime.get_available_providers():
            providers.insert(0, (CUDA_PROVIDER, {"device_id": gpu, "use_tf32": 0}))  # as in PyTorch
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3  # errors
        self.session = onnxruntime.InferenceSession(path, options, providers=providers)
        self.input_names = [value.name for value in self.session.get_inputs()]
        self.output_names = [value.name for value in self.session.get_outputs()]
        # Callers read the device of a model from its parameters.
        self.device_anchor = nn.Parameter(torch.empty(0), requires_grad=False)

    @property
    def uses_gpu(self) -> bool:
        """Whether the graph runs on a GPU. onnxruntime falls back to the CPU if it cannot load CUDA."""
        return CUDA_PROVIDER in self.session.get_providers()

    @property
    def base_model(self) -> "OnnxModel":
        """The model itself, because the graph includes the encoder."""
        return self

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None, **_: Any,
    ) -> OnnxOutput:  # fmt: skip
        """Compute the outputs; if masked positions are set, vocabulary logits are reduced to them."""
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        inputs = {
            "input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids,
        }  # fmt: skip
        arrays = self.session.run(
            self.output_names, {name: inputs[name].numpy() for name in self.input_names}
        )
        output = OnnxOutput(zip(self.output_names, map(torch.from_numpy, arrays), strict=True))
        positions = self.__dict__.pop(MASKED_POSITIONS, None)
        if positions is not None:
            name = next(name for name in VOCABULARY_OUTPUTS if name in output)
            logits = output[name]
            output[name] = logits.gather(1, positions.unsqueeze(-1).expand(-1, -1, logits.shape[-1]))
        return output


def find_onnx_model(folder: Path) -> ModelSource | None:
    """Return the exported model in a directory; None if there is none."""
    is_exported = (folder / ONNX_FILE).is_file()
    return ModelSource(folder.resolve().name, folder, is_run=True) if is_exported else None


def _load_onnx_model(folder: Path) -> OnnxModel:
    require_extra("onnx", ["onnxruntime"], f"{folder}")
    from onnxruntime.capi import onnxruntime_pybind11_state as errors

    path, device = folder / ONNX_FILE, devices.get_device()
    try:
        model = OnnxModel(path, device.index if device.type == "cuda" else None)
    except (errors.Fail, errors.InvalidProtobuf, errors.InvalidGraph, errors.NoSuchFile) as error:
        raise UserError(
            f"{path}: onnxruntime cannot read the file ({str(error).splitlines()[0]}); export the run again"
        ) from error
    if model.uses_gpu:
        report_info(f"device: {devices.describe_device()}, with onnxruntime's CUDA provider")
    elif device.type == "cuda" or (devices.is_requested() and device.type != "cpu"):
        report = report_warning if devices.is_requested() else report_info
        report(
            f"{path}: runs on the CPU, because this onnxruntime has no provider for {device}; on an NVIDIA "
            "GPU, install onnxruntime-gpu in place of onnxruntime"
        )
    return model.eval()
