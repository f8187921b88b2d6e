"""The definition of a task: what is known about it before a run. Importing this module is fast."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from bertkit.settings.run_settings import RunConfig

if TYPE_CHECKING:
    from bertkit.data.readers.formats import Dialect


@dataclass(frozen=True, kw_only=True)
class TransformersPipeline:
    """Arguments with which `transformers.pipeline()` makes the same predictions as bertkit.

    Attributes:
        task: Task name of `pipeline()`, which is also the pipeline tag on the Hub.
        init_kwargs: Further arguments of `pipeline()`.
        call_kwargs: Keyword arguments of the call of the pipeline.
        example_input: Input in the example code of the model card.
        caveat: Why the predictions differ from bertkit's, or None if they are the same. The text completes
            the sentence "`transformers.pipeline` ..." in the model card.
    """

    task: str
    init_kwargs: Mapping[str, Any] = field(default_factory=dict)
    call_kwargs: Mapping[str, Any] = field(default_factory=dict)
    example_input: str = "..."
    caveat: str | None = None


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """Properties of a task.

    The class attribute `Task.spec` holds the defaults. A task replaces its instance attribute `spec` if a
    property depends on the settings, the dataset or the model.

    Attributes:
        name: Name of the task, which is also its command.
        help: Help text of the command.
        config: Class of the settings.
        pipeline: Arguments of `transformers.pipeline()` for a model of this task.
        best_metric: Metric that selects the best checkpoint, and +1 if higher is better or -1 if lower is.
        unit: Noun for one row in messages.
        default_max_length: `max_length` in tokens if neither the user nor the dataset sets it.
        default_hyperparameters: Hyperparameters that replace those suggested from the sizes of the data and
            of the model.
        column_aliases: Settings of this task by the names that the dataset registry uses for them.
        reads_conll: Whether plain text files are in the CoNLL format, with one word per line.
        sequence_grouping: What the sequences of an example are: "document" for the windows of a text,
            "choice" for the choices of a row. None if each example is one sequence.
        uses_windows: Whether long inputs are split into windows; otherwise they are truncated.
        resamples_examples: Whether new examples of at most `max_length` tokens are sampled in each epoch.
        scores_tokens: Whether the logits belong to tokens, so that they depend on the tokenizer.
        predicts_rows: Whether there is one prediction per row, which is written with the columns of the row.
        predictions_name: File name of the predictions, without extension.
        trains_encoder: Whether the encoder is trained. Otherwise, the head is fitted to the vectors of texts
            (see `TrainingMethod.fit_head`), and the run has no training steps.
        training_phrase: Words between the initial model and the name of the task in the model card.
    """

    name: str
    help: str
    config: type[RunConfig]
    pipeline: TransformersPipeline
    best_metric: tuple[str, int] = ("accuracy", 1)
    unit: str = "row"
    default_max_length: int = 256
    default_hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    column_aliases: Mapping[str, str] = field(default_factory=dict)
    reads_conll: bool = False
    sequence_grouping: Literal["document", "choice"] | None = None
    uses_windows: bool = False
    resamples_examples: bool = False
    scores_tokens: bool = False
    predicts_rows: bool = True
    predictions_name: str = "predictions"
    trains_encoder: bool = True
    training_phrase: str = "fine-tuned for"

    def make_dialect(self, encoding: str | None) -> "Dialect":
        """Return how the text files of the task are read, given the value of `--encoding`."""
        from bertkit.data.readers.formats import Dialect

        return Dialect(conll=self.reads_conll, encoding=encoding)
