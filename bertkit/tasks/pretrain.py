"""`pretrain-mlm-nsp`: pre-train BERT on plain text, from scratch or from an existing model."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from bertkit.config import RunConfig
from bertkit.errors import UserError
from bertkit.tasks.base import Preview, Scores, TaskSpec, TransformersPipeline
from bertkit.tasks.corpus_task import CorpusTask
from bertkit.tasks.evaluation import Evaluation, Outputs, ScoreDetail
from bertkit.tasks.objective import Objective
from bertkit.tasks.pretrain_config import PretrainConfig, apply_phases
from bertkit.tasks.pretrain_objectives import OBJECTIVES
from bertkit.text_config import WordUnits

if TYPE_CHECKING:
    from bertkit.data.corpus.features import CorpusFeatures, Phase
    from bertkit.data.features import Features
    from bertkit.data.loading import LoadedDataset
    from bertkit.data.rows import Rows, Splits
    from bertkit.metrics.significance import Scorer
    from bertkit.modeling.loading import ModelSource
    from bertkit.modeling.losses import Loss
    from bertkit.utils.reporting import Reporter

# For continued pre-training. The README of google-research/bert recommends a smaller rate than from scratch.
CONTINUED_LEARNING_RATE = 2e-5
WARMUP = 0.01  # Devlin et al. 2018, A.2: 10,000 of 1,000,000 steps
# A run with a time limit has few steps. In 2,000 steps, this warmup reaches a lower loss than that of the
# paper (docs/results.md). Izsak et al. 2021 use 0.06.
SHORT_RUN_WARMUP = 0.1
NUM_SAMPLES = 100  # examples in masked_samples.jsonl


SPEC = TaskSpec(
    name="pretrain-mlm-nsp",
    help="Pre-train a model on plain text: masked language modeling and next sentence prediction, or "
    "another objective.",
    config=PretrainConfig,
    pipeline=TransformersPipeline(task="fill-mask"),
    best_metric=("loss", -1),
    unit="text",  # a document, or a part of a document if there are few documents
    default_max_length=128,
    default_hyperparameters={"epochs": 1.0, "batch_size": 32},
    resamples_examples=True,
    predicts_rows=False,
    predictions_name="masked_samples",
)


class Pretrain(CorpusTask):
    """Pre-training of BERT (Devlin et al. 2018, 3.1), with the objectives of its ablations (5.1) and others.

    The other objectives are sentence order prediction (ALBERT) and replaced token detection (ELECTRA).

    Attributes:
        eval_collator: Collator for evaluation examples; set by `make_collator`.
        training_rows: The documents of the training split; set by `featurize`.
    """

    spec = SPEC
    eval_collator: Any
    training_rows: "Rows"

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
    def phases(self) -> "list[Phase]":
        """The phases of `--phases`, or a single phase of `--max-length`."""
        from bertkit.data.corpus.features import parse_phases

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

    def load_data(self, reporter: "Reporter") -> "LoadedDataset":
        """Check the masking settings, and load and tokenize the documents."""
        self.objective.validate_config(self.config)
        return super().load_data(reporter)

    def check_tokenizer(self) -> None:
        """Refuse a tokenizer without [MASK] if the objective masks tokens."""
        if self.tokenizer.mask_token_id is None and not self.objective.is_causal:
            flag = "--model" if self.config.model else "--tokenizer"
            raise UserError(
                f"{flag} {self.model_source.name}: the tokenizer has no [MASK] token; pass another one, or "
                "--objective ltr"
            )

    def validate_splits(self, splits: "Splits") -> None:
        """Check the masking settings. The documents were checked by `load_data`."""
        self.objective.validate_config(self.config)

    def describe(self) -> str:
        """Return one line on what the model predicts."""
        if self.objective.is_causal:
            return "each token" + self.objective.description
        unit = f"tokens, in whole {self.word_units}" if self.config.whole_word_masking else "tokens"
        return f"{self.config.mlm_probability:.0%} of the {unit}{self.objective.description}"

    def configure_model(self, model_config: Any, source: "ModelSource") -> Any:
        """Configure the model for the objective.

        Raises:
            UserError: The model does not support the objective, or a phase is longer than its maximum length.
        """
        from bertkit.modeling.loading import get_max_positions
        from bertkit.training.defaults import suggest_pretraining_rate

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
        from bertkit.modeling.loading import load_config
        from bertkit.modeling.pretraining import find_missing_heads

        if not self.config.model:
            return "token embeddings from PPMI" if self._uses_ppmi else ""
        heads = find_missing_heads(
            self.objective.auto_class, self.model_source, load_config(self.model_source)
        )
        new_heads = f"re-initialized heads for {' and '.join(heads)} (not in its weights)" if heads else ""
        notes = [new_heads, self.objective.describe_model(self.model_source, self.config)]
        return ", ".join(filter(None, notes))

    # ---- examples

    def featurize(self, rows: "Rows", tokenizer: Any, training: bool = False) -> "Features":
        """Return examples that are sampled again in every epoch.

        For training, return the examples of each phase.

        Raises:
            UserError: There is not enough text for one example.
        """
        from bertkit.data.corpus.features import PhasedFeatures

        if not training:
            return self._build_features(rows, tokenizer, self.config.max_length)
        self.training_rows = rows
        features = [self._build_features(rows, tokenizer, phase.length) for phase in self.phases]
        return PhasedFeatures.from_phases(self.phases, features)

    def _build_features(self, rows: "Rows", tokenizer: Any, max_length: int) -> "CorpusFeatures":
        """Return examples of at most `max_length` tokens."""
        from bertkit.data.corpus.features import CorpusFeatures
        from bertkit.data.corpus.pairs import describe_pairs
        from bertkit.data.tokenization import SequenceTemplate

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

    def preview(self, features: Any, tokenizer: Any) -> "Preview | None":
        """Return a random sample of masked examples from the first epoch of the first phase."""
        if self.config.preview is None:
            return None
        from bertkit.data.collator import PaddingCollator
        from bertkit.masking.preview import decode_masked_samples, measure_samples, sample_indices
        from bertkit.masking.words import find_continuation_tokens

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
        from bertkit.data.corpus.features import PhasedCollator

        pad, build_collator = super().make_collator(tokenizer, model), self.objective.build_collator
        self.eval_collator = build_collator(self.config, tokenizer, pad, self.config.max_length)
        phase_collators = [build_collator(self.config, tokenizer, pad, phase.length) for phase in self.phases]
        return PhasedCollator(phase_collators, self.eval_collator)

    @property
    def _uses_ppmi(self) -> bool:
        return bool(self.config.embedding_init == "ppmi")

    def build_model(self, model_config: Any, source: "ModelSource") -> Any:
        """Return the model of the objective, with `--embedding-init` and `--dropout`."""
        from bertkit.modeling.dropout import set_dropout

        model = self.objective.build_model(model_config, source, self.config)
        if source.is_new and self._uses_ppmi:
            self._initialize_embeddings(model)
        if self.config.dropout is not None:
            set_dropout(model, self.config.dropout)
        return model

    def _initialize_embeddings(self, model: Any) -> None:
        """Set the token embeddings of a new model to vectors from the training text."""
        from bertkit.data.corpus.cooccurrence import load_token_vectors
        from bertkit.modeling.pretraining import set_token_embeddings
        from bertkit.utils import distributed

        shape = model.base_model.get_input_embeddings().weight.shape
        corpus, documents = self.corpus_set.locate_documents(self.training_rows)
        vectors = distributed.on_main_process(load_token_vectors, corpus, documents, *shape, self.config.seed)
        set_token_embeddings(model, vectors)

    def make_loss(self, features: Any) -> "Loss":
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

    def score_baselines(self, train: "Rows", rows: "Rows") -> dict[str, Scores]:
        """Score `unigram`, which predicts tokens by their frequency in the training text, and others.

        The other baselines are those of the objective.
        """
        from bertkit.metrics.pretraining import score_unigram

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

    def make_scorer(self) -> "Scorer":
        """Return a scorer of examples."""
        from bertkit.metrics.significance import Scorer

        logits = self.outputs.logits
        return Scorer(lambda rows: self.objective.score(logits[rows], self.has_pairs), len(logits))

    def iter_records(self, score_detail: ScoreDetail = "default") -> Iterator[dict[str, Any]]:
        """Yield a sample of masked examples; `mlm_loss` is the mean loss of the predicted tokens in nats."""
        from bertkit.masking.preview import decode_masked_samples, sample_indices

        features, logits = self.outputs.features, self.outputs.logits
        indices = sample_indices(features, NUM_SAMPLES)
        loss_sums, num_predictions = logits[indices, 0], logits[indices, 2]
        losses = loss_sums / num_predictions.clip(1)
        samples = decode_masked_samples(features, self.collator, self.tokenizer, indices)
        for sample, loss in zip(samples, losses.tolist(), strict=True):
            yield {**sample, "mlm_loss": loss}
