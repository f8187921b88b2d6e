"""Base class of tasks on documents of running text; the training objective is up to the subclass."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.config import RunConfig, get_flag, get_settings
from bertkit.errors import UserError
from bertkit.tasks.base import Task
from bertkit.tasks.pretrain_config import MODEL_SIZES

if TYPE_CHECKING:
    from bertkit.checks.findings import Finding
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

    text_columns = ["text"]
    unit = "text"  # a document, or a part of one if there are few
    row_level = False
    corpus_set: "CorpusSet"
    model_source: "ModelSource"
    tokenizer: Any

    # ---- text

    def load_data(self, reporter: "Reporter") -> "LoadedDataset":
        """Load and tokenize the documents that `--data` names."""
        from bertkit.data.corpus.rows import CorpusSet
        from bertkit.data.loading import LoadedDataset
        from bertkit.modeling.loading import load_tokenizer

        sources = self._find_sources()
        train = sources["train"]
        self.model_source = self._find_start(train, reporter)
        self.tokenizer = load_tokenizer(self.model_source)
        self.check_tokenizer()
        self.corpus_set, splits, notes = CorpusSet(), {}, list(train.notes)
        for split, source in sources.items():
            split_few = split == "train" and "validation" not in sources
            splits[split], split_notes = self.corpus_set.read_rows(
                source, self._text_options(source), self.tokenizer, reporter, split_few
            )
            notes += split_notes
        return LoadedDataset(train.name, train.location, splits, notes=notes)

    def _find_sources(self) -> "dict[str, TextSource]":
        """Return the text of each split."""
        from bertkit.data.corpus.source import find_text

        config = self.config
        train = find_text(config.data, config.data_dir, config.text_column)
        sources = {split: replace(train, splits={"train": files}) for split, files in train.splits.items()}
        for split in ("validation", "test"):
            if name := getattr(config, split):
                sources[split] = find_text(name, config.data_dir, config.text_column, flag=f"--{split}")
        return sources

    def _text_options(self, text: "TextSource") -> "TextOptions":
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
        self._check_scratch_settings()
        if config.model:
            return find_model(config.model)
        return create_model_folder(config, MODEL_SIZES, text, self._text_options(text), reporter)

    def config_from_run(self, run_dir: Path) -> RunConfig:
        """Return the settings of a run without those of a model from scratch: its model exists."""
        unset: dict[str, Any] = dict.fromkeys(self._scratch_flags())
        return replace(super().config_from_run(run_dir), **unset)

    def _scratch_flags(self) -> dict[str, str]:
        """Return the flags of the settings for a model from scratch, by name."""
        settings = get_settings(type(self.config)).items()
        return {
            name: get_flag(name, setting) for name, (_, setting, _) in settings if "model" in setting.replaces
        }

    def _check_scratch_settings(self) -> None:
        if not self.config.model:
            return
        for name, flag in self._scratch_flags().items():
            if getattr(self.config, name) is not None:
                raise UserError(f"{flag}: applies only to a model from scratch; remove it or --model")

    def resolve_model(self, is_explicit: bool, reporter: "Reporter", weights: bool = True) -> "ModelSource":
        """Return the model of `load_data`, which needs its tokenizer to read the text."""
        return self.model_source

    # ---- rows

    def parse_dataset(self, dataset: "LoadedDataset") -> "LoadedDataset":
        """Return the dataset unchanged."""
        return dataset

    def normalize_rows(self, rows: "Rows") -> "Rows":
        """Return the rows unchanged."""
        return rows

    def split_keys(self, rows: "Rows") -> "SplitKeys":
        """Return keys by which equal documents stay in one split."""
        from bertkit.data.split import SplitKeys

        return SplitKeys(rows["digest"], rows["digest"], [0] * len(rows), unit=self.unit)

    def normalize_labeled_rows(self, rows: "Rows", split: str) -> tuple["Rows", list[str]]:
        """Return the rows unchanged: text has no labels."""
        return rows, []

    def load_state(self, model_config: Any) -> None:
        """Refuse to predict rows.

        Raises:
            UserError: Always.
        """
        raise UserError("a pre-trained model cannot predict rows; fine-tune it by passing it to --model")

    @property
    def gold_columns(self) -> set[str]:
        """No column has labels."""
        return set()

    # ---- data check

    def load_examples(self, reporter: "Reporter") -> "LoadedDataset":
        """Load the documents without tokenizing them, since there may be no tokenizer yet."""
        from bertkit.checks.corpus import load_document_rows
        from bertkit.data.loading import LoadedDataset

        self._check_scratch_settings()
        sources, splits = self._find_sources(), {}
        notes = list(sources["train"].notes)
        for split, source in sources.items():
            split_few = split == "train" and "validation" not in sources
            splits[split], split_notes = load_document_rows(source, self._text_options(source), split_few)
            notes += split_notes
        return LoadedDataset(sources["train"].name, sources["train"].location, splits, notes=notes)

    def check_rows(
        self, dataset: "LoadedDataset", parsed: "LoadedDataset", notes: Sequence[str]
    ) -> Iterator["Finding"]:
        """Report the amount of text and documents of one sentence."""
        from bertkit.checks.corpus import check_corpus

        yield from super().check_rows(dataset, parsed, notes)
        for split, rows in parsed.splits.items():
            yield from check_corpus(split, rows, self.config.has_pairs)

    def resolve_tokenizer(self, is_explicit: bool, reporter: "Reporter") -> "ModelSource | None":
        """Return the existing tokenizer, or None if a new one will be trained on the text."""
        from bertkit.modeling.loading import find_model
        from bertkit.modeling.scratch import find_tokenizer

        if self.config.model:
            return find_model(self.config.model, needs_weights=False)
        return find_tokenizer(self.config.tokenizer) if self.config.tokenizer else None
