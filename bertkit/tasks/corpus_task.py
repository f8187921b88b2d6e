"""What a task on documents of running text has to do with text; what is learned of it is the task's own."""

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
    """A task whose rows are documents, which are in pieces before anything else is done.

    Attributes:
        corpora: the texts in pieces; known after `find`.
        begins: the model or the tokenizer that training begins with; known after `find`.
        tokenizer: known after `find`.
    """

    text_columns = ["text"]
    unit = "text"  # a document, or a stretch of few
    row_level = False
    corpus_set: "CorpusSet"
    model_source: "ModelSource"
    tokenizer: Any

    # ---- text

    def load_data(self, reporter: "Reporter") -> "LoadedDataset":
        """The documents that `--data` names, in pieces."""
        from bertkit.data.corpus.rows import CorpusSet
        from bertkit.data.loading import LoadedDataset
        from bertkit.modeling.loading import load_tokenizer

        sources = self._sources()
        train = sources["train"]
        self.model_source = self._begins(train, reporter)
        self.tokenizer = load_tokenizer(self.model_source)
        self.check_tokenizer()
        self.corpus_set, splits, notes = CorpusSet(), {}, list(train.notes)
        for split, source in sources.items():
            few = split == "train" and "validation" not in sources
            options = self._options(source)
            splits[split], more = self.corpus_set.read_rows(source, options, self.tokenizer, reporter, few)
            notes += more
        return LoadedDataset(train.name, train.location, splits, notes=notes)

    def _sources(self) -> "dict[str, TextSource]":
        """The text of each split."""
        from bertkit.data.corpus.source import find_text

        config = self.config
        train = find_text(config.data, config.data_dir, config.text_column)
        sources = {split: replace(train, splits={"train": files}) for split, files in train.splits.items()}
        for split in ("validation", "test"):
            if name := getattr(config, split):
                sources[split] = find_text(name, config.data_dir, config.text_column, flag=f"--{split}")
        return sources

    def _options(self, text: "TextSource") -> "TextOptions":
        from bertkit.data.corpus.documents import TextOptions

        return TextOptions.from_config(self.config, text.column, self.config.text_format)

    def check_tokenizer(self) -> None:
        """Refuse a tokenizer that lacks what the task needs."""
        return

    # ---- the model to begin with

    def _begins(self, text: "TextSource", reporter: "Reporter") -> "ModelSource":
        from bertkit.modeling.loading import find_model
        from bertkit.modeling.scratch import create_model_folder

        config = self.config
        self._check_scratch()
        if config.model:
            return find_model(config.model)
        return create_model_folder(config, MODEL_SIZES, text, self._options(text), reporter)

    def config_from_run(self, run_dir: Path) -> RunConfig:
        """It is from scratch no more."""
        unsaid: dict[str, Any] = dict.fromkeys(self._of_scratch())
        return replace(super().config_from_run(run_dir), **unsaid)

    def _of_scratch(self) -> dict[str, str]:
        """The settings that make a model from scratch -> their flags."""
        known = get_settings(type(self.config)).items()
        return {name: get_flag(name, about) for name, (_, about, _) in known if "model" in about.replaces}

    def _check_scratch(self) -> None:
        for name, flag in self._of_scratch().items() if self.config.model else ():
            if getattr(self.config, name) is not None:
                raise UserError(f"{flag}: belongs to a model from scratch; leave it out, or --model")

    def resolve_model(self, is_explicit: bool, reporter: "Reporter", weights: bool = True) -> "ModelSource":
        """Found with the text: the tokenizer is needed to read it."""
        return self.model_source

    # ---- rows

    def parse_dataset(self, dataset: "LoadedDataset") -> "LoadedDataset":
        """Nothing to look for."""
        return dataset

    def normalize_rows(self, rows: "Rows") -> "Rows":
        """As they are."""
        return rows

    def split_keys(self, rows: "Rows") -> "SplitKeys":
        """The same document is the same example."""
        from bertkit.data.split import SplitKeys

        return SplitKeys(rows["digest"], rows["digest"], [0] * len(rows), unit=self.unit)

    def normalize_labeled_rows(self, rows: "Rows", split: str) -> tuple["Rows", list[str]]:
        """Text is its own label."""
        return rows, []

    def load_state(self, model_config: Any) -> None:
        """Not of use for rows.

        Raises:
            UserError: always.
        """
        raise UserError("a pre-trained model predicts no rows; fine-tune it with --model")

    @property
    def gold_columns(self) -> set[str]:
        """None."""
        return set()

    # ---- looked at before training

    def load_examples(self, reporter: "Reporter") -> "LoadedDataset":
        """The documents, not cut into pieces: that would take a tokenizer, which may not be there yet."""
        from bertkit.checks.corpus import load_document_rows
        from bertkit.data.loading import LoadedDataset

        self._check_scratch()
        sources, splits = self._sources(), {}
        notes = list(sources["train"].notes)
        for split, source in sources.items():
            few = split == "train" and "validation" not in sources
            splits[split], more = load_document_rows(source, self._options(source), few)
            notes += more
        return LoadedDataset(sources["train"].name, sources["train"].location, splits, notes=notes)

    def check_rows(
        self, dataset: "LoadedDataset", parsed: "LoadedDataset", notes: Sequence[str]
    ) -> Iterator["Finding"]:
        """How much text there is, and documents of one sentence."""
        from bertkit.checks.corpus import check_corpus

        yield from super().check_rows(dataset, parsed, notes)
        for split, rows in parsed.splits.items():
            yield from check_corpus(split, rows, self.config.has_pairs)

    def resolve_tokenizer(self, is_explicit: bool, reporter: "Reporter") -> "ModelSource | None":
        """A new tokenizer knows the text that it is made of."""
        from bertkit.modeling.loading import find_model
        from bertkit.modeling.scratch import find_tokenizer

        if self.config.model:
            return find_model(self.config.model, needs_weights=False)
        return find_tokenizer(self.config.tokenizer) if self.config.tokenizer else None
