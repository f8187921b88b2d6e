"""The prediction of new rows with a finished run, an ensemble, or an exported model."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

from bertkit.data.table import CHUNK_ROWS, Rows, chunk_records
from bertkit.errors import UserError, format_list
from bertkit.models import loading
from bertkit.models.loading import ONNX_FILE, ModelSource
from bertkit.run_directory import RunDir
from bertkit.settings.declaration import get_column_settings
from bertkit.tasks.base import Evaluation, ScoreDetail, Task, merge_prediction
from bertkit.tasks.trained_model import (
    TrainedLinearText,
    TrainedModel,
    add_scope_output,
    build_trained_model,
    combine_models,
    load_linear_text,
    load_run_task,
)
from bertkit.utils.compat import require_extra
from bertkit.utils.files import expand_home
from bertkit.utils.reporting import report_info, silence_libraries
from bertkit.utils.system import resume_collection


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

    def count_tokens(self, rows: Rows) -> int:
        """Return the tokens of all sequences of parsed rows, or those of the longest text if it has more.

        The tokens of a linear model of texts are words and pairs of words.
        """
        features = self.featurize(rows)
        return max(int(features.sequence_lengths.sum()), features.max_untruncated_length)

    @property
    def loaded_models(self) -> list[Any]:
        """The models with one encoder each: that of the run, or those of an ensemble; not an exported one."""
        from bertkit.models.exported import OnnxModel  # imports torch

        models = getattr(self.model, "members", [self.model])
        return [model for model in models if not isinstance(model, OnnxModel)]

    @property
    def is_on_gpu(self) -> bool:
        """Whether the model runs on another device than the CPU."""
        return bool(next(self.model.parameters()).device.type != "cpu")

    @property
    def backend(self) -> str:
        """The library that computes the model."""
        return "pytorch" if self.loaded_models else "onnxruntime"

    def report_device(self) -> None:
        """Report the device of the model; see `bertkit.utils.devices.report_device`."""
        from bertkit.utils import devices  # imports torch

        devices.report_device(self.model)

    def warn_about_padding(self) -> None:
        """Warn if predictions depend on the other rows of a batch."""
        from bertkit.models.load_check import warn_about_padding  # imports torch

        config = self.task.config
        for model in self.loaded_models if config.eval_batch_size > 1 else ():
            warn_about_padding(model, self.tokenizer, config.max_length)

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
class LinearTextPredictor(TrainedLinearText, Predictor):
    """A predictor whose model is a linear model of texts."""

    def count_tokens(self, rows: Rows) -> int:
        from bertkit.models.linear_text import split_words

        return sum(
            len(split_words(text)) for name in self.task.input_schema.text_columns for text in rows[name]
        )

    @property
    def loaded_models(self) -> list[Any]:
        return []

    is_on_gpu = False
    backend = "scipy"

    def report_device(self) -> None:
        """Report nothing: the model is computed on the CPU."""

    def warn_about_padding(self) -> None:
        """Do not warn: a prediction does not depend on other rows."""


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
            pending = pending.select(range(end, len(pending))) if end < len(pending) else None
    if pending is not None:
        yield pending


def load_prediction_task(run: str | Path) -> Task:
    """Return the task of a finished run or an ensemble, which must predict rows, without its model."""
    task = load_run_task(expand_home(run), accepts_ensemble=True)
    if not task.definition.predicts_rows:
        raise UserError(
            f"{run}: is a run of {task.definition.name}, which does not predict rows; "
            f"use bertkit fill-mask {run} or bertkit embed {run}"
        )
    return task


def load_predictor(
    run: str | Path,
    keep_stock_layers: bool = False,
    device: str | None = None,
    has_scope_output: bool = True,
) -> Predictor:
    """Load a finished run, an exported model or an ensemble, also that of a study, for prediction.

    With `keep_stock_layers`, the model stays as transformers builds it, on the CPU, to be exported. `device`
    is the value of `--device`, if the command has not requested it yet. Without `has_scope_output`, texts out
    of scope are not found. Linear models of texts run on the CPU
    and are loaded without torch.
    """
    run_dir = expand_home(run)
    if folders := RunDir(run_dir).find_members():
        return combine_models(folders, [load_predictor(member, device=device) for member in folders])
    task = load_prediction_task(run)
    if loading.is_linear_text_model(run_dir):
        linear = load_linear_text(task, run_dir)
        return LinearTextPredictor(linear.task, linear.model, linear.tokenizer)
    if device is not None:
        from bertkit.utils import devices  # imports torch

        devices.request_device(device)
    onnx_source = find_onnx_model(run_dir)
    if onnx_source is None:
        trained = build_trained_model(task, loading.find_run_model(run_dir), keep_stock_layers)
        if has_scope_output:
            add_scope_output(task, trained.model)
        return Predictor(trained.task, trained.model, trained.tokenizer)
    task.use_cache = False
    from bertkit.models.exported import load_onnx_model  # imports torch

    with silence_libraries():
        task.load_state(loading.load_config(onnx_source))
        model, tokenizer = load_onnx_model(onnx_source.folder), loading.load_tokenizer(onnx_source)
    resume_collection()
    return Predictor(task, model, tokenizer)


def supports_gpu(run: str | Path) -> bool:
    """Return whether the model of a run, or a member of an ensemble, can use a GPU, without loading it."""
    folder = expand_home(run)
    if members := RunDir(folder).find_members():
        return any(map(supports_gpu, members))
    if find_onnx_model(folder) is None:
        return not loading.is_linear_text_model(folder)
    require_extra("onnx", ["onnxruntime"], f"{folder}")
    import onnxruntime

    from bertkit.models.exported import CUDA_PROVIDER  # imports torch

    return CUDA_PROVIDER in onnxruntime.get_available_providers()


def find_onnx_model(folder: Path) -> ModelSource | None:
    """Return the exported model in a directory; None if there is none."""
    is_exported = (folder / ONNX_FILE).is_file()
    return ModelSource(folder.resolve().name, folder, is_run=True) if is_exported else None
