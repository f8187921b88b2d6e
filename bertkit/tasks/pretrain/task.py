"""The base class of tasks on running text."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from bertkit.data.corpus.documents import TextOptions, TextSource, find_text, iter_raw_texts
from bertkit.data.corpus.examples import (
    CorpusFeatures,
    Phase,
    PhasedCollator,
    PhasedFeatures,
    describe_pairs,
    parse_phases,
)
from bertkit.data.corpus.store import load_token_vectors
from bertkit.data.features import Features, PaddingCollator
from bertkit.data.masking import find_continuation_tokens
from bertkit.data.sources import LoadedDataset
from bertkit.data.split import SplitKeys
from bertkit.data.table import Rows, Splits
from bertkit.data.tokens import SequenceTemplate
from bertkit.errors import UserError
from bertkit.models.layers import set_dropout
from bertkit.models.loading import ModelSource, find_model, get_max_positions, load_config, load_tokenizer
from bertkit.models.losses import Loss
from bertkit.models.pretraining import find_missing_heads
from bertkit.models.scratch import create_model_folder, set_token_embeddings
from bertkit.settings.run_settings import RunConfig, WordUnits
from bertkit.stats.scores import score_unigram
from bertkit.stats.significance import Scorer
from bertkit.tasks.base import InputSchema, Preview, Scores, Task
from bertkit.tasks.definition import TransformersPipeline
from bertkit.tasks.evaluation import Evaluation, Outputs, ScoreDetail
from bertkit.tasks.pretrain.config import (
    MODEL_SIZES,
    PRETRAIN,
    apply_phases,
    check_scratch_settings,
)
from bertkit.tasks.pretrain.objectives import OBJECTIVES, Objective
from bertkit.tasks.pretrain.preview import decode_masked_samples, measure_samples, sample_indices
from bertkit.tasks.pretrain.rows import CorpusSet
from bertkit.training.arguments import suggest_pretraining_rate
from bertkit.utils import distributed


class CorpusTask(Task):
    """A task whose rows are documents. `load_data` tokenizes the documents. Subclasses define the objective.

    Attributes:
        corpus_set: The tokenized texts; set by `load_data`.
        model_source: The model or tokenizer that training starts from; set by `load_data`.
        tokenizer: The tokenizer of `model_source`; set by `load_data`.
        training_source: The training text; set by `load_data`.
    """

    corpus_set: CorpusSet
    model_source: ModelSource
    tokenizer: Any
    training_source: TextSource

    @property
    def input_schema(self) -> InputSchema:
        """The column of texts."""
        return CorpusSchema(text_columns=("text",), task=self)

    # ---- text

    def load_data(self) -> LoadedDataset:
        """Load and tokenize the documents of all splits."""
        sources = self.find_sources()
        train = self.training_source = sources["train"]
        self.model_source = self._resolve_initial_model(train)
        self.tokenizer = load_tokenizer(self.model_source)
        self.check_tokenizer()
        self.corpus_set = CorpusSet()
        splits, notes = {}, list(train.notes)
        for split, source in sources.items():
            # Validation text is held out by document, which requires several documents.
            split_few = split == "train" and "validation" not in sources
            options = self.build_text_options(source)
            splits[split], split_notes = self.corpus_set.add_corpus(
                source, options, self.tokenizer, split_few, self.word_units
            )
            notes += split_notes
        return LoadedDataset(train.name, train.location, splits, notes=notes)

    def find_sources(self) -> dict[str, TextSource]:
        """Find the text files of each split."""
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

    def build_text_options(self, text: TextSource) -> TextOptions:
        """Return the options for finding documents and sentences in the text."""
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

    def _resolve_initial_model(self, text: TextSource) -> ModelSource:
        """Return the model of `--model`, or a new config with a tokenizer for this text."""
        config = self.config
        check_scratch_settings(config)
        if config.model:
            return find_model(config.model)
        return create_model_folder(config, MODEL_SIZES, text, self.build_text_options(text))

    def resolve_model(self, is_model_requested: bool, needs_weights: bool = True) -> ModelSource:
        """Return the model that `load_data` resolved in order to tokenize the text."""
        return self.model_source

    # ---- rows

    def parse_dataset(self, dataset: LoadedDataset) -> LoadedDataset:
        """Return the dataset unchanged."""
        return dataset

    def split_keys(self, rows: Rows) -> SplitKeys:
        """Return keys that keep documents with the same text in the same split."""
        digests = rows.hash_columns(["digest"])
        return SplitKeys(digests, digests, stratum=np.zeros(len(rows), int), unit=self.spec.unit)

    def parse_rows(self, rows: Rows, split: str = "", require_labels: bool = False) -> tuple[Rows, list[str]]:
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

    def sample_texts(self, rows: Rows, count: int) -> list[str]:
        """Return the first lines of the training text."""
        source = self.task.training_source
        return list(islice(iter_raw_texts(source.files, self.task.build_text_options(source)), count))


# For continued pre-training. The README of google-research/bert recommends a smaller rate than from scratch.
CONTINUED_LEARNING_RATE = 2e-5
WARMUP = 0.01  # Devlin et al. 2018, A.2: 10,000 of 1,000,000 steps
# A run with a time limit has few steps. In 2,000 steps, this warmup reaches a lower loss than that of the
# paper (docs/results.md). Izsak et al. 2021 use 0.06.
SHORT_RUN_WARMUP = 0.1
NUM_SAMPLES = 100  # examples in masked_samples.jsonl


class Pretrain(CorpusTask):
    """Pre-training of BERT (Devlin et al. 2018, 3.1), with the objectives of its ablations (5.1) and others.

    The other objectives are sentence order prediction (ALBERT) and replaced token detection (ELECTRA).

    Attributes:
        eval_collator: Collator for evaluation examples; set by `make_collator`.
        training_rows: The documents of the training split; set by `featurize`.
    """

    spec = PRETRAIN
    eval_collator: Any
    training_rows: Rows

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._validation_sums: Any = None
        if self.config.phases is not None:
            self.config = apply_phases(self.config)
        pipeline = TransformersPipeline(task=self.objective.hub_task)
        best_metric = (self.objective.best_metric, -1)
        phrase = "pre-trained from scratch by"
        self.spec = replace(self.spec, pipeline=pipeline, best_metric=best_metric, training_phrase=phrase)
        if self.config.model:
            self.spec = replace(self.spec, training_phrase="further pre-trained by")

    @property
    def phases(self) -> list[Phase]:
        """The phases of `--phases`, or a single phase of `--max-length`."""
        return parse_phases(self.config.phases or f"{self.config.max_length}:1")

    @property
    def objective(self) -> Objective:
        """The objective that `--objective` names."""
        return OBJECTIVES[self.config.objective]

    # ---- objective

    @property
    def word_units(self) -> WordUnits:
        """The units of whole-word masking."""
        units: WordUnits = self.config.word_units
        return units

    def load_data(self) -> LoadedDataset:
        """Check the masking settings, and load and tokenize the documents."""
        self.objective.validate_config(self.config)
        return super().load_data()

    def check_tokenizer(self) -> None:
        """Refuse a tokenizer without [MASK] if the objective masks tokens."""
        if self.tokenizer.mask_token_id is None and not self.objective.is_causal:
            flag = "--model" if self.config.model else "--tokenizer"
            raise UserError(
                f"{flag} {self.model_source.name}: the tokenizer has no [MASK] token; pass another one, or "
                "--objective ltr"
            )

    def validate_splits(self, splits: Splits) -> None:
        """Check the masking settings. The documents were checked by `load_data`."""
        self.objective.validate_config(self.config)

    def describe(self) -> str:
        """Return one line on what the model predicts."""
        if self.objective.is_causal:
            return "each token" + self.objective.description
        unit = f"tokens, in whole {self.word_units}" if self.config.whole_word_masking else "tokens"
        return f"{self.config.mlm_probability:.0%} of the {unit}{self.objective.description}"

    def configure_model(self, model_config: Any, source: ModelSource) -> Any:
        """Configure the model for the objective.

        Raises:
            UserError: The model does not support the objective, or a phase is longer than its maximum length.
        """
        max_positions = get_max_positions(model_config)
        if self.config.phases is not None and max_positions is not None:
            for phase in self.phases:
                if phase.length > max_positions:
                    raise UserError(
                        f"--phases {phase}: {source.name} has {max_positions} positions; use shorter phases"
                    )
        rate = CONTINUED_LEARNING_RATE if self.config.model else suggest_pretraining_rate(model_config)
        self.spec = replace(
            self.spec,
            pipeline=self.objective.build_pipeline(self.tokenizer),
            default_hyperparameters={**self._get_default_hyperparameters(), "learning_rate": rate},
        )
        model_config = self.objective.configure_model(model_config, source.name, self.tokenizer)
        if self._uses_ppmi:
            _check_embedding_size(model_config)
        self.head_note = self._describe_new_weights()
        return model_config

    def _get_default_hyperparameters(self) -> dict[str, float]:
        """Return the defaults that do not depend on the model."""
        if self.config.time_limit is None:
            return {**self.spec.default_hyperparameters, "warmup": WARMUP}
        # As in Geiping and Goldstein 2022: a short run reads each text only a few times.
        dropout = {} if self.config.model else {"dropout": 0.0}
        return {**self.spec.default_hyperparameters, "warmup": SHORT_RUN_WARMUP, **dropout}

    def _describe_new_weights(self) -> str:
        """Return a note on PPMI embeddings, or on heads that the weights of `--model` lack."""
        if not self.config.model:
            return "token embeddings from PPMI" if self._uses_ppmi else ""
        heads = find_missing_heads(
            self.objective.auto_class, self.model_source, load_config(self.model_source)
        )
        new_heads = f"re-initialized heads for {' and '.join(heads)} (not in its weights)" if heads else ""
        notes = [new_heads, self.objective.describe_model(self.model_source, self.config)]
        return ", ".join(filter(None, notes))

    # ---- examples

    def featurize(self, rows: Rows, tokenizer: Any, training: bool = False) -> Features:
        """Return examples that are sampled again in every epoch.

        For training, return the examples of each phase.

        Raises:
            UserError: There is not enough text for one example.
        """
        if not training:
            return self._build_features(rows, tokenizer, self.config.max_length)
        self.training_rows = rows
        features = [self._build_features(rows, tokenizer, phase.length) for phase in self.phases]
        return PhasedFeatures.from_phases(self.phases, features)

    def _build_features(self, rows: Rows, tokenizer: Any, max_length: int) -> CorpusFeatures:
        """Return examples of at most `max_length` tokens."""
        config = self.config
        corpus, documents = self.corpus_set.locate_documents(rows)
        template = SequenceTemplate.from_tokenizer(tokenizer, pair=config.has_pairs)
        build_plan = partial(
            self.objective.plan_examples, corpus, documents, max_length - template.num_special_tokens,
            config.seed, short_seq_prob=config.short_seq_prob,
        )  # fmt: skip
        features = CorpusFeatures.from_corpus(
            corpus, build_plan, template, config.seed, self.objective.reduce_example_logits
        )
        if not len(features):
            raise UserError(
                f"{rows.files[0]}: too little text for one example of {config.objective}, since a pair takes "
                "consecutive sentences of a document; add text, or pass --objective mlm, which takes single "
                "sentences"
            )
        if config.objective == "mlm+nsp":
            features.pair_notes.extend(describe_pairs(corpus, documents, features.get_plan(0)))
        return features

    def preview(self, features: Any, tokenizer: Any) -> Preview | None:
        """Return a random sample of masked examples from the first epoch of the first phase."""
        if self.config.preview is None:
            return None

        features = features.phase_features[0]
        pad = PaddingCollator(tokenizer.pad_token_id, return_token_type_ids=False)
        collator = self.objective.build_collator(self.config, tokenizer, pad, self.phases[0].length)
        indices = sample_indices(features, self.config.preview)
        samples = list(decode_masked_samples(features, collator, tokenizer, indices))
        statistics = measure_samples(features, collator, find_continuation_tokens(tokenizer), indices)
        notes = []
        if len(features) < self.config.preview:
            notes.append(f"an epoch has only {len(features):,} examples: all are shown")
        return Preview(statistics, samples, notes)

    def make_collator(self, tokenizer: Any, model: Any) -> Callable[..., Any]:
        """Return a collator that pads and masks examples with the settings of their phase."""
        pad, build_collator = super().make_collator(tokenizer, model), self.objective.build_collator
        self.eval_collator = build_collator(self.config, tokenizer, pad, self.config.max_length)
        phase_collators = [build_collator(self.config, tokenizer, pad, phase.length) for phase in self.phases]
        return PhasedCollator(phase_collators, self.eval_collator)

    @property
    def _uses_ppmi(self) -> bool:
        return bool(self.config.embedding_init == "ppmi")

    def build_model(self, model_config: Any, source: ModelSource) -> Any:
        """Return the model of the objective, with `--embedding-init` and `--dropout`."""
        model = self.objective.build_model(model_config, source, self.config)
        if source.is_new and self._uses_ppmi:
            self._initialize_embeddings(model)
        if self.config.dropout is not None:
            set_dropout(model, self.config.dropout)
        return model

    def _initialize_embeddings(self, model: Any) -> None:
        """Set the token embeddings of a new model to vectors from the training text."""
        shape = model.base_model.get_input_embeddings().weight.shape
        corpus, documents = self.corpus_set.locate_documents(self.training_rows)
        vectors = distributed.on_main_process(load_token_vectors, corpus, documents, *shape, self.config.seed)
        set_token_embeddings(model, vectors)

    def make_loss(self, features: Any) -> Loss:
        """Return the loss of the objective."""
        return self.objective.make_loss()

    # ---- scores

    def evaluate(self, outputs: Outputs) -> "PretrainEvaluation":
        """Return the losses and a sample of masked examples."""
        has_pairs = self.config.has_pairs
        return PretrainEvaluation(outputs, self.objective, has_pairs, self.eval_collator, self.tokenizer)

    def fit_decision(self, evaluation: Evaluation) -> None:
        """Store the outputs on the validation split, on which baselines of the objective may depend."""
        self._validation_sums = evaluation.outputs.logits

    def score_baselines(self, train: Rows, rows: Rows) -> dict[str, Scores]:
        """Score `unigram`, which predicts tokens by their frequency in the training text, and others.

        The other baselines are those of the objective.
        """
        unigram = score_unigram(
            *self.corpus_set.locate_documents(train), *self.corpus_set.locate_documents(rows)
        )
        return self.objective.score_baselines(unigram, self._validation_sums)


def _check_embedding_size(model_config: Any) -> None:
    """Check that the vocabulary is large enough for a factorization.

    Raises:
        UserError: It has fewer tokens than an embedding has components.
    """
    size = getattr(model_config, "embedding_size", model_config.hidden_size)
    if model_config.vocab_size < size:
        raise UserError(
            f"--embedding-init ppmi: the vocabulary has {model_config.vocab_size:,} tokens, fewer than the "
            f"embedding size {size:,}; use a larger --vocab-size, or --embedding-init random"
        )


class PretrainEvaluation(Evaluation):
    """The losses of the examples, and a sample of the masked examples.

    Attributes:
        objective: The training objective.
        has_pairs: Whether an example has two texts.
        collator: Masks the same tokens as when the losses were computed.
        tokenizer: Decodes the sampled examples.
    """

    def __init__(
        self, outputs: Outputs, objective: Objective, has_pairs: bool, collator: Any, tokenizer: Any
    ) -> None:
        super().__init__(outputs)
        self.objective = objective
        self.has_pairs = has_pairs
        self.collator = collator
        self.tokenizer = tokenizer

    def compute_scores(self) -> Scores:
        """Return losses in nats, accuracies, and the perplexity of the predicted tokens."""
        return self.objective.score(self.outputs.logits, self.has_pairs)

    def make_scorer(self) -> Scorer:
        """Return a scorer of examples."""
        logits = self.outputs.logits
        return Scorer(lambda rows: self.objective.score(logits[rows], self.has_pairs), len(logits))

    def iter_records(self, score_detail: ScoreDetail = "default") -> Iterator[dict[str, Any]]:
        """Yield a sample of masked examples; `mlm_loss` is the mean loss of the predicted tokens in nats."""
        features, logits = self.outputs.features, self.outputs.logits
        indices = sample_indices(features, NUM_SAMPLES)
        loss_sums, num_predictions = logits[indices, 0], logits[indices, 2]
        losses = loss_sums / num_predictions.clip(1)
        samples = decode_masked_samples(features, self.collator, self.tokenizer, indices)
        for sample, loss in zip(samples, losses.tolist(), strict=True):
            yield {**sample, "mlm_loss": loss}
