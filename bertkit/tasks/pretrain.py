"""`pretrain-mlm-nsp`: pre-train BERT on plain text, from scratch or from an existing model."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from bertkit.config import RunConfig
from bertkit.errors import UserError
from bertkit.tasks.base import Pipeline, Preview, Scores, TaskSpec
from bertkit.tasks.corpus_task import CorpusTask
from bertkit.tasks.evaluation import Evaluation, Outputs, ScoreDetail
from bertkit.tasks.pretrain_config import PretrainConfig, apply_phases
from bertkit.tasks.pretrain_objectives import OBJECTIVES, Objective

if TYPE_CHECKING:
    from bertkit.data.corpus.features import CorpusFeatures, Phase
    from bertkit.data.features import Features
    from bertkit.data.rows import Rows, Splits
    from bertkit.metrics.significance import Scorer
    from bertkit.modeling.loading import ModelSource
    from bertkit.modeling.losses import Loss

SAMPLE_COUNT = 100  # examples in masked_samples.jsonl


class Pretrain(CorpusTask):
    """Masked language modeling and next sentence prediction (Devlin et al. 2018, 3.1) with ablations (5.1).

    Attributes:
        eval_collator: Collator for scoring; set by `collator`.
    """

    spec = TaskSpec(
        name="pretrain-mlm-nsp",
        help="Pre-train a BERT on plain text: masked language modeling and next sentence prediction.",
        config=PretrainConfig,
        pipeline=Pipeline(task="fill-mask"),
        best_metric=("loss", -1),
        unit="text",  # a document, or a part of one if there are few
        default_max_length=128,
        # Devlin et al. 2018, A.2, with batches that fit a small machine
        default_hyperparameters={"epochs": 1.0, "batch_size": 32, "learning_rate": 1e-4},
        dynamic_examples=True,
        row_level=False,
        predictions_name="masked_samples",
    )
    eval_collator: Any

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        if self.config.phases is not None:
            self.config = apply_phases(self.config)
        start = "further pre-trained by" if self.config.model else "pre-trained from scratch by"
        pipeline = Pipeline(task=self.objective.hub_task)
        self.spec = replace(self.spec, pipeline=pipeline, training_phrase=start)

    @property
    def phases(self) -> "list[Phase]":
        """The phases of training: those of --phases, or a single one."""
        from bertkit.data.corpus.features import parse_phases

        return parse_phases(self.config.phases or f"{self.config.max_length}:1")

    @property
    def objective(self) -> Objective:
        """The objective that `--objective` names."""
        return OBJECTIVES[self.config.objective]

    # ---- objective

    def check_tokenizer(self) -> None:
        """Refuse a tokenizer without [MASK] if the objective masks tokens."""
        if self.tokenizer.mask_token_id is None and not self.objective.is_causal:
            flag = "--model" if self.config.model else "--tokenizer"
            raise UserError(
                f"{flag} {self.model_source.name}: its tokenizer has no [MASK] token; pass another, or "
                "--objective ltr"
            )

    def validate_splits(self, splits: "Splits") -> None:
        """Check the masking settings; the documents were checked when they were read."""
        self.objective.validate_config(self.config)

    def describe(self) -> str:
        """Return what the model predicts."""
        if self.objective.is_causal:
            return "each token" + self.objective.description
        unit = "tokens, in whole words" if self.config.whole_word_masking else "tokens"
        return f"{self.config.mlm_probability:.0%} of the {unit}{self.objective.description}"

    def configure_model(self, model_config: Any, source: "ModelSource") -> Any:
        """Configure the model for the objective, and check the lengths of the phases."""
        from bertkit.modeling.loading import get_max_positions

        limit = get_max_positions(model_config)
        for phase in self.phases if self.config.phases is not None else []:
            if limit is not None and phase.length > limit:
                raise UserError(f"--phases {phase}: {source.name} has {limit} positions; use shorter phases")
        self.spec = replace(self.spec, pipeline=self.objective.build_pipeline(self.tokenizer))
        configured = self.objective.configure_model(model_config, source.name, self.tokenizer)
        self.head_note = self._describe_new_heads()
        return configured

    def _describe_new_heads(self) -> str:
        """Return a note on the heads that the initial model lacks."""
        from bertkit.modeling.loading import load_config
        from bertkit.modeling.pretraining import find_missing_heads

        if not self.config.model:
            return ""
        heads = find_missing_heads(
            self.objective.auto_class, self.model_source, load_config(self.model_source)
        )
        return f"re-initialized heads over {' and '.join(heads)} (not in its weights)" if heads else ""

    # ---- examples

    def featurize(self, rows: "Rows", tokenizer: Any, training: bool = False) -> "Features":
        """Return examples that are sampled again in every epoch; for training those of each phase.

        Raises:
            UserError: There is not enough text for one example.
        """
        from bertkit.data.corpus.features import PhasedFeatures

        if not training:
            return self._build_features(rows, tokenizer, self.config.max_length)
        features = [self._build_features(rows, tokenizer, phase.length) for phase in self.phases]
        return PhasedFeatures.from_phases(self.phases, features)

    def _build_features(self, rows: "Rows", tokenizer: Any, max_length: int) -> "CorpusFeatures":
        from bertkit.data.corpus.features import CorpusFeatures
        from bertkit.data.corpus.pairs import describe_pairs
        from bertkit.data.tokenization import SequenceTemplate
        from bertkit.modeling.losses import sum_pretraining_logits

        config = self.config
        corpus, documents = self.corpus_set.locate_documents(rows)
        template = SequenceTemplate.from_tokenizer(tokenizer, pair=config.has_pairs)
        build_plan = partial(
            self.objective.build_examples, corpus, documents, max_length - template.num_special_tokens,
            config.seed, short_seq_prob=config.short_seq_prob,
        )  # fmt: skip
        features = CorpusFeatures.from_corpus(
            corpus, build_plan, template, config.seed, sum_pretraining_logits
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
        """Return masked examples of the first epoch and phase, sampled from the whole text."""
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
        is_short = len(features) < self.config.preview
        notes = [f"an epoch has only {len(features):,} examples: all are shown"] if is_short else []
        return Preview(statistics, samples, notes)

    def collator(self, tokenizer: Any, model: Any) -> Callable[..., Any]:
        """Return a collator that pads and masks batches of any phase."""
        from bertkit.data.corpus.features import PhasedCollator

        pad, build = super().collator(tokenizer, model), self.objective.build_collator
        self.eval_collator = build(self.config, tokenizer, pad, self.config.max_length)
        phase_collators = [build(self.config, tokenizer, pad, phase.length) for phase in self.phases]
        return PhasedCollator(phase_collators, self.eval_collator)

    def build_model(self, model_config: Any, source: "ModelSource") -> Any:
        """Return the encoder with a vocabulary head and, for pairs, a head over [CLS]."""
        from bertkit.modeling.dropout import set_dropout
        from bertkit.modeling.loading import load_model
        from bertkit.modeling.pretraining import gather_masked_positions

        auto_class = self.objective.auto_class
        if self.config.model and any(source.folder.glob("*.safetensors")):
            return gather_masked_positions(load_model(auto_class, source, model_config))
        model = auto_class.from_config(model_config)
        if self.config.dropout is not None:
            set_dropout(model, self.config.dropout)
        return gather_masked_positions(model)

    def loss(self, features: Any) -> "Loss":
        """Return the sum of the mlm and nsp losses, each with its own mean."""
        from bertkit.modeling.losses import PretrainingLoss

        return PretrainingLoss()

    # ---- scores

    def evaluate(self, outputs: Outputs) -> "PretrainEvaluation":
        """Return losses and masked samples."""
        return PretrainEvaluation(outputs, self.config.has_pairs, self.eval_collator, self.tokenizer)

    def baselines(self, train: "Rows", rows: "Rows") -> dict[str, Scores]:
        """Return `unigram`, a model of the token frequencies in the training text."""
        from bertkit.metrics.pretraining import score_unigram

        return {
            "unigram": score_unigram(
                *self.corpus_set.locate_documents(train), *self.corpus_set.locate_documents(rows)
            )
        }


class PretrainEvaluation(Evaluation):
    """Losses of the examples, and a sample of them as they were masked.

    Attributes:
        has_pairs: whether an example has two texts.
        collator: masks the examples as they were scored.
    """

    def __init__(self, outputs: Outputs, has_pairs: bool, collator: Any, tokenizer: Any) -> None:
        super().__init__(outputs)
        self.has_pairs, self.collator, self.tokenizer = has_pairs, collator, tokenizer

    def compute_scores(self) -> Scores:
        """Return losses in nats, accuracies, and the perplexity of the masked tokens."""
        from bertkit.metrics.pretraining import score_pretraining

        return score_pretraining(self.outputs.logits, self.has_pairs)

    def scorer(self) -> "Scorer":
        """Return a scorer that resamples examples."""
        from bertkit.metrics.pretraining import score_pretraining
        from bertkit.metrics.significance import Scorer

        logits = self.outputs.logits
        return Scorer(lambda rows: score_pretraining(logits[rows], self.has_pairs), len(logits))

    def records(self, scores: ScoreDetail = "default") -> Iterator[dict[str, Any]]:
        """Yield some masked examples with the mean loss of their masked tokens in nats."""
        from bertkit.masking.preview import decode_masked_samples, sample_indices

        features, logits = self.outputs.features, self.outputs.logits
        indices = sample_indices(features, SAMPLE_COUNT)
        losses = logits[indices, 0] / logits[indices, 2].clip(1)
        samples = decode_masked_samples(features, self.collator, self.tokenizer, indices)
        for sample, loss in zip(samples, losses.tolist(), strict=True):
            yield {**sample, "mlm_loss": loss}
