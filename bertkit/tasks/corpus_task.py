"""The base class of tasks on running text."""

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from bertkit.errors import UserError
from bertkit.tasks.base import Task
from bertkit.tasks.input_schema import InputSchema
from bertkit.tasks.pretrain_config import MODEL_SIZES, check_scratch_settings
from bertkit.text_config import WordUnits

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
    """A task whose rows are documents. `load_data` tokenizes the documents. Subclasses define the objective.

    Attributes:
        corpus_set: The tokenized texts; set by `load_data`.
        model_source: The model or tokenizer that training starts from; set by `load_data`.
        tokenizer: The tokenizer of `model_source`; set by `load_data`.
        training_source: The training text; set by `load_data`.
    """

    corpus_set: "CorpusSet"
    model_source: "ModelSource"
    tokenizer: Any
    training_source: "TextSource"

    @property
    def input_schema(self) -> InputSchema:
        """The column of texts."""
        return CorpusSchema(text_columns=("text",), task=self)

    # ---- text

    def load_data(self, reporter: "Reporter") -> "LoadedDataset":
        """Load and tokenize the documents of all splits."""
        from bertkit.data.corpus.rows import CorpusSet
        from bertkit.data.loading import LoadedDataset
        from bertkit.modeling.loading import load_tokenizer

        sources = self.find_sources()
        train = self.training_source = sources["train"]
        self.model_source = self._resolve_initial_model(train, reporter)
        self.tokenizer = load_tokenizer(self.model_source)
        self.check_tokenizer()
        self.corpus_set = CorpusSet()
        splits, notes = {}, list(train.notes)
        for split, source in sources.items():
            # Validation text is held out by document, which requires several documents.
            split_few = split == "train" and "validation" not in sources
            options = self.build_text_options(source)
            splits[split], split_notes = self.corpus_set.add_corpus(
                source, options, self.tokenizer, reporter, split_few, self.word_units
            )
            notes += split_notes
        return LoadedDataset(train.name, train.location, splits, notes=notes)

    def find_sources(self) -> "dict[str, TextSource]":
        """Find the text files of each split."""
        from bertkit.data.corpus.source import find_text

        config = self.config
        find = partial(
            find_text, data_dir=config.data_dir, column=config.text_column, encoding=config.encoding
        )
        train = find(config.data)
        sources = {split: replace(train, splits={"train": files}) for split, files in train.splits.items()}
        for split in ("validation", "test"):
            if name := getattr(config, split):
                sources[split] = find(name, flag=f"--{split}")
        return sources

    def build_text_options(self, text: "TextSource") -> "TextOptions":
        """Return the options for finding documents and sentences in the text."""
        from bertkit.data.corpus.documents import TextOptions

        return TextOptions.from_config(self.config, text, self.config.text_format)

    def check_tokenizer(self) -> None:
        """Check that the tokenizer has the special tokens that the task needs.

        Raises:
            UserError: The tokenizer lacks a special token.
        """
        return

    @property
    def word_units(self) -> WordUnits:
        """The units that are masked together, which the corpus has to contain."""
        return "words"

    # ---- initial model

    def _resolve_initial_model(self, text: "TextSource", reporter: "Reporter") -> "ModelSource":
        """Return the model of `--model`, or a new config with a tokenizer for this text."""
        from bertkit.modeling.loading import find_model
        from bertkit.modeling.scratch import create_model_folder

        config = self.config
        check_scratch_settings(config)
        if config.model:
            return find_model(config.model)
        return create_model_folder(config, MODEL_SIZES, text, self.build_text_options(text), reporter)

    def resolve_model(
        self, is_model_requested: bool, reporter: "Reporter", needs_weights: bool = True
    ) -> "ModelSource":
        """Return the model that `load_data` resolved in order to tokenize the text."""
        return self.model_source

    # ---- rows

    def parse_dataset(self, dataset: "LoadedDataset") -> "LoadedDataset":
        """Return the dataset unchanged."""
        return dataset

    def split_keys(self, rows: "Rows") -> "SplitKeys":
        """Return keys that keep documents with the same text in the same split."""
        import numpy as np

        from bertkit.data.split import SplitKeys

        digests = rows.hash_columns(["digest"])
        return SplitKeys(digests, digests, stratum=np.zeros(len(rows), int), unit=self.spec.unit)

    def parse_rows(
        self, rows: "Rows", split: str = "", require_labels: bool = False
    ) -> tuple["Rows", list[str]]:
        """Return the rows unchanged; running text has no separate labels."""
        return rows, []

    def load_state(self, model_config: Any) -> None:
        """Raise an error, because a pre-trained model cannot predict rows.

        Raises:
            UserError: Always.
        """
        raise UserError("a pre-trained model cannot predict rows; fine-tune it by passing it to --model")


@dataclass(frozen=True, kw_only=True)
class CorpusSchema(InputSchema):
    """The text of pre-training, which is not in the rows.

    Attributes:
        task: The task, which knows the files.
    """

    task: CorpusTask

    def sample_texts(self, rows: "Rows", count: int) -> list[str]:
        """Return the first lines of the training text."""
        from itertools import islice

        from bertkit.data.corpus.documents import iter_raw_texts

        source = self.task.training_source
        return list(islice(iter_raw_texts(source.files, self.task.build_text_options(source)), count))
