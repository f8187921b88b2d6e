"""Base class of tasks on documents of running text; the training objective is up to the subclass."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bertkit.errors import UserError
from bertkit.tasks.base import InputSchema, Task
from bertkit.tasks.pretrain_config import MODEL_SIZES, check_scratch_settings

if TYPE_CHECKING:
    from bertkit.data.corpus.documents import TextOptions
    from bertkit.data.corpus.rows import CorpusSet
    from bertkit.data.corpus.source import TextSource
    from bertkit.data.loading import LoadedDataset
    from bertkit.data.rows import Rows
    from bertkit.data.split import SplitKeys
    from bertkit.modeling.loading import ModelSource
    from bertkit.utils.reporting import Reporter


class CorpusTask(Task):
    """A task whose rows are documents; the text is tokenized when it is loaded.

    Attributes:
        corpus_set: The tokenized texts; set by `load_data`.
        model_source: The model or tokenizer that training starts from; set by `load_data`.
        tokenizer: Set by `load_data`.
    """

    corpus_set: "CorpusSet"
    model_source: "ModelSource"
    tokenizer: Any

    @property
    def inputs(self) -> InputSchema:
        """The text of the documents."""
        return InputSchema(text_columns=("text",))

    # ---- text

    def load_data(self, reporter: "Reporter") -> "LoadedDataset":
        """Load and tokenize the documents that `--data` names."""
        from bertkit.data.corpus.rows import CorpusSet
        from bertkit.data.loading import LoadedDataset
        from bertkit.modeling.loading import load_tokenizer

        sources = self.find_sources()
        train = sources["train"]
        self.model_source = self._find_start(train, reporter)
        self.tokenizer = load_tokenizer(self.model_source)
        self.check_tokenizer()
        self.corpus_set, splits, notes = CorpusSet(), {}, list(train.notes)
        for split, source in sources.items():
            split_few = split == "train" and "validation" not in sources
            options = self.text_options(source)
            splits[split], split_notes = self.corpus_set.read_rows(
                source, options, self.tokenizer, reporter, split_few
            )
            notes += split_notes
        return LoadedDataset(train.name, train.location, splits, notes=notes)

    def find_sources(self) -> "dict[str, TextSource]":
        """Return the text of each split."""
        from bertkit.data.corpus.source import find_text

        config = self.config
        train = find_text(config.data, config.data_dir, config.text_column)
        sources = {split: replace(train, splits={"train": files}) for split, files in train.splits.items()}
        for split in ("validation", "test"):
            if name := getattr(config, split):
                sources[split] = find_text(name, config.data_dir, config.text_column, flag=f"--{split}")
        return sources

    def text_options(self, text: "TextSource") -> "TextOptions":
        """Return how documents and sentences are found in the text."""
        from bertkit.data.corpus.documents import TextOptions

        return TextOptions.from_config(self.config, text.column, self.config.text_format)

    def check_tokenizer(self) -> None:
        """Refuse a tokenizer that lacks what the task needs."""
        return

    # ---- initial model

    def _find_start(self, text: "TextSource", reporter: "Reporter") -> "ModelSource":
        from bertkit.modeling.loading import find_model
        from bertkit.modeling.scratch import create_model_folder

        config = self.config
        check_scratch_settings(config)
        if config.model:
            return find_model(config.model)
        return create_model_folder(config, MODEL_SIZES, text, self.text_options(text), reporter)

    def resolve_model(self, is_explicit: bool, reporter: "Reporter", weights: bool = True) -> "ModelSource":
        """Return the model of `load_data`, which needs its tokenizer to read the text."""
        return self.model_source

    # ---- rows

    def parse_dataset(self, dataset: "LoadedDataset") -> "LoadedDataset":
        """Return the dataset unchanged."""
        return dataset

    def split_keys(self, rows: "Rows") -> "SplitKeys":
        """Return keys by which equal documents stay in one split."""
        from bertkit.data.split import SplitKeys

        return SplitKeys(rows["digest"], rows["digest"], [0] * len(rows), unit=self.spec.unit)

    def parse_rows(
        self, rows: "Rows", split: str = "", require_labels: bool = False
    ) -> tuple["Rows", list[str]]:
        """Return the rows unchanged; text is its own label."""
        return rows, []

    def load_state(self, model_config: Any) -> None:
        """Refuse to predict rows.

        Raises:
            UserError: Always.
        """
        raise UserError("a pre-trained model cannot predict rows; fine-tune it by passing it to --model")
