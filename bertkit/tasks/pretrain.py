"""`pretrain-mlm-nsp`: BERT from plain text, from scratch or continued."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from bertkit.config import RunConfig
from bertkit.errors import UserError
from bertkit.tasks.base import Pipeline, Preview, Scores, TaskSpec
from bertkit.tasks.corpus_task import CorpusTask
from bertkit.tasks.evaluation import Evaluation, Outputs, ScoreDetail
from bertkit.tasks.pretrain_config import PretrainConfig
from bertkit.tasks.pretrain_objectives import OBJECTIVES, Objective

if TYPE_CHECKING:
    from bertkit.data.corpus.features import CorpusFeatures
    from bertkit.data.corpus.phases import Phase
    from bertkit.data.features import Features
    from bertkit.data.rows import Rows, Splits
    from bertkit.metrics.intervals import Scorer
    from bertkit.modeling.loading import ModelSource
    from bertkit.modeling.losses import Loss

SAMPLE_COUNT = 100  # masked samples in a run


class Pretrain(CorpusTask):
    """Masked language model and next sentence prediction (Devlin et al. 2018, 3.1), and its ablations (5.1).

    Attributes:
        collate: as examples are scored; known after `collator`.
    """

    spec = TaskSpec(
        name="pretrain-mlm-nsp",
        help="Pre-train a BERT on plain text: masked words and next sentences.",
        config=PretrainConfig,
        pipeline=Pipeline(task="fill-mask"),
        best_metric=("loss", -1),
        unit="text",  # a document, or a section of one where there are few documents
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
            from bertkit.data.corpus.phases import apply_phases

            self.config = apply_phases(self.config)
        start = "further pre-trained by" if self.config.model else "pre-trained from new weights by"
        pipeline = Pipeline(task=self.objective.hub_task)
        self.spec = replace(self.spec, pipeline=pipeline, training_phrase=start)

    @property
    def phases(self) -> "list[Phase]":
        """Of training; one, unless --phases has several."""
        from bertkit.data.corpus.phases import parse_phases

        return parse_phases(self.config.phases or f"{self.config.max_length}:1")

    @property
    def objective(self) -> Objective:
        """As asked by `--objective`."""
        return OBJECTIVES[self.config.objective]

    # ---- what is learned

    def check_tokenizer(self) -> None:
        """Refuse one without a mask where something is masked."""
        if self.tokenizer.mask_token_id is None and not self.objective.is_causal:
            flag = "--model" if self.config.model else "--tokenizer"
            raise UserError(f"{flag} {self.model_source.name}: its tokenizer has no [MASK] piece")

    def validate_splits(self, splits: "Splits") -> None:
        """Documents were checked when they were read; masking by rates that leave something to predict."""
        self.objective.validate_config(self.config)

    def describe(self) -> str:
        """What is predicted."""
        unit = "whole words" if self.config.whole_word_masking else "pieces"
        share = (
            "each piece" if self.objective.is_causal else f"{self.config.mlm_probability:.0%} of the {unit}"
        )
        return share + self.objective.description

    def configure_model(self, model_config: Any, source: "ModelSource") -> Any:
        """The config as it is, where it can do the objective."""
        if self.config.phases is not None:
            for phase in self.phases:
                phase.validate_length(model_config, source.name)
        self.spec = replace(self.spec, pipeline=self.objective.build_pipeline(self.tokenizer))
        configured = self.objective.configure_model(model_config, source.name, self.tokenizer)
        self.head_note = self._describe_new_heads()
        return configured

    def _describe_new_heads(self) -> str:
        """Name the heads that are re-initialized in a model that is trained further."""
        from bertkit.modeling.loading import load_config
        from bertkit.modeling.pretraining import find_missing_heads

        if not self.config.model:
            return ""
        found = find_missing_heads(
            self.objective.auto_class, self.model_source, load_config(self.model_source)
        )
        return f"new heads over {' and '.join(found)}, of which its weights have none" if found else ""

    # ---- examples

    def featurize(self, rows: "Rows", tokenizer: Any, training: bool = False) -> "Features":
        """Return examples that are sampled again in every epoch; for training those of each phase.

        Raises:
            UserError: there is too little text for one example.
        """
        from bertkit.data.corpus.phases import PhasedFeatures

        if not training:
            return self._examples(rows, tokenizer, self.config.max_length)
        parts = [self._examples(rows, tokenizer, phase.length) for phase in self.phases]
        return PhasedFeatures.from_phases(self.phases, parts)

    def _examples(self, rows: "Rows", tokenizer: Any, max_length: int) -> "CorpusFeatures":
        from bertkit.data.corpus import pairs
        from bertkit.data.corpus.features import CorpusFeatures
        from bertkit.data.tokenization import SequenceTemplate

        config, (corpus, chosen) = self.config, self.corpus_set.locate_documents(rows)
        template = SequenceTemplate.from_tokenizer(tokenizer, pair=config.has_pairs)
        room, share = max_length - template.num_special_tokens, config.short_seq_prob
        draw = partial(self.objective.build_examples, corpus, chosen, room, config.seed, short_seq_prob=share)
        features = CorpusFeatures.from_corpus(corpus, draw, template, config.seed)
        if not len(features):
            raise UserError(
                f"{rows.files[0]}: too little text for an example of {config.objective}: a pair takes "
                "sentences that follow each other in a document; give more text, or --objective mlm, which "
                "takes single ones"
            )
        if config.objective == "mlm+nsp":
            features.pair_notes.extend(pairs.describe_pairs(corpus, chosen, features.get_plan(0)))
        return features

    def preview(self, features: Any, tokenizer: Any) -> "Preview | None":
        """Some examples of the first epoch (and phase), from all over the text, as they are masked."""
        if self.config.preview is None:
            return None
        from bertkit.data.collator import PaddingCollator
        from bertkit.masking.samples import decode_masked_samples, measure_samples, sample_indices
        from bertkit.masking.words import find_continuation_tokens

        pad, features = (
            PaddingCollator(tokenizer.pad_token_id, return_token_type_ids=False),
            features.phase_features[0],
        )
        collate = self.objective.build_collator(self.config, tokenizer, pad, self.phases[0].length)
        numbers = sample_indices(features, self.config.preview)
        shown = list(decode_masked_samples(features, collate, tokenizer, numbers))
        found = measure_samples(features, collate, find_continuation_tokens(tokenizer), numbers)
        fewer = [f"an epoch has {len(features):,} examples: these are all of them"]
        return Preview(found, shown, fewer if len(features) < self.config.preview else [])

    def collator(self, tokenizer: Any, model: Any) -> Callable[..., Any]:
        """Pads, masks, and tells what is to be predicted."""
        from bertkit.data.corpus.phases import PhasedCollator

        pad = super().collator(tokenizer, model)
        self.eval_collator = self.objective.build_collator(
            self.config, tokenizer, pad, self.config.max_length
        )
        return PhasedCollator(
            [
                self.objective.build_collator(self.config, tokenizer, pad, phase.length)
                for phase in self.phases
            ],
            self.eval_collator,
        )

    def build_model(self, model_config: Any, source: "ModelSource") -> Any:
        """The encoder with its heads over the vocabulary and, with pairs, over [CLS]."""
        from bertkit.modeling.dropout import set_dropout
        from bertkit.modeling.loading import load_model
        from bertkit.modeling.pretraining import gather_masked_positions

        kind = self.objective.auto_class
        if self.config.model and any(source.folder.glob("*.safetensors")):
            return gather_masked_positions(load_model(kind, source, model_config))
        model = kind.from_config(model_config)
        if self.config.dropout is not None:
            set_dropout(model, self.config.dropout)
        return gather_masked_positions(model)

    def loss(self, features: Any) -> "Loss":
        """Both parts, each with its own mean."""
        from bertkit.modeling.losses import PretrainingLoss

        return PretrainingLoss()

    # ---- scores

    def evaluate(self, outputs: Outputs) -> "PretrainEvaluation":
        """Return losses and masked samples."""
        return PretrainEvaluation(outputs, self.config.has_pairs, self.eval_collator, self.tokenizer)

    def baselines(self, train: "Rows", rows: "Rows") -> dict[str, Scores]:
        """`unigram`: each piece is as likely as it is frequent in the training text."""
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
        """Return a scorer of examples."""
        from bertkit.metrics.intervals import Scorer
        from bertkit.metrics.pretraining import score_pretraining

        logits = self.outputs.logits
        return Scorer(lambda rows: score_pretraining(logits[rows], self.has_pairs), len(logits))

    def records(self, scores: ScoreDetail = "default") -> Iterator[dict[str, Any]]:
        """Yield some masked examples with the mean loss of their masked tokens in nats."""
        from bertkit.masking.samples import decode_masked_samples, sample_indices

        features, logits = self.outputs.features, self.outputs.logits
        indices = sample_indices(features, SAMPLE_COUNT)
        losses = logits[indices, 0] / logits[indices, 2].clip(1)
        samples = decode_masked_samples(features, self.collator, self.tokenizer, indices)
        for sample, loss in zip(samples, losses.tolist(), strict=True):
            yield {**sample, "mlm_loss": loss}
