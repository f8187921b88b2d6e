"""`pretrain-mlm-nsp`: pre-train a model on running text, whose documents are the rows."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any

import numpy as np

from bertkit.data.collators import PaddingCollator
from bertkit.data.corpus.documents import TextOptions, TextSource, find_text, iter_raw_texts
from bertkit.data.corpus.examples import (
    CorpusFeatures,
    Phase,
    PhasedCollator,
    PhasedFeatures,
    describe_pairs,
    parse_phases,
    plan_epoch,
)
from bertkit.data.corpus.store import Corpus, load_corpus, load_token_vectors
from bertkit.data.features import Features
from bertkit.data.masking import CausalLmCollator, MlmCollator, find_continuation_tokens
from bertkit.data.sources import LoadedDataset
from bertkit.data.split import SplitKeys
from bertkit.data.table import Rows, Splits
from bertkit.data.tokens import SequenceTemplate
from bertkit.errors import UserError, format_count, format_list
from bertkit.models.layers import set_dropout
from bertkit.models.loading import ModelSource, find_model, get_max_positions, load_config, load_tokenizer
from bertkit.models.losses import Loss
from bertkit.models.pretraining import find_missing_heads
from bertkit.models.scratch import create_model_folder, set_token_embeddings
from bertkit.settings.run_settings import WordUnits
from bertkit.stats.scores import Scores, score_unigram
from bertkit.stats.significance import Scorer
from bertkit.tasks.base import (
    Evaluation,
    InputSchema,
    Outputs,
    Preview,
    ScoreDetail,
    Task,
    TaskState,
    TransformersPipeline,
)
from bertkit.tasks.pretrain.config import (
    MODEL_SIZES,
    PRETRAIN,
    PretrainConfig,
    apply_phases,
    check_scratch_settings,
)
from bertkit.tasks.pretrain.objectives import OBJECTIVES, Objective
from bertkit.training.arguments import suggest_pretraining_rate
from bertkit.utils import distributed
from bertkit.utils.reporting import report_warning

# For continued pre-training. The README of google-research/bert recommends a smaller rate than from scratch.
CONTINUED_LEARNING_RATE = 2e-5
WARMUP = 0.01  # Devlin et al. 2018, A.2: 10,000 of 1,000,000 steps
# A run with a time limit has few steps. In 2,000 steps, this warmup reaches a lower loss than that of the
# paper (docs/results.md). Izsak et al. 2021 use 0.06.
SHORT_RUN_WARMUP = 0.1


class PretrainState(TaskState):
    """What a run of `pretrain-mlm-nsp` finds."""

    corpus_set: "CorpusSet"  # the tokenized texts, from `load_data`, like the next three
    training_source: TextSource
    model_source: ModelSource  # of the model or the tokenizer that training starts from
    tokenizer: Any = None
    learning_rate: float  # the default for the model, from `configure_model`
    training_rows: Rows  # from `featurize`
    eval_collator: Any  # from `make_collator`
    validation_sums: np.ndarray | None = None  # outputs on the validation split, from `fit_decision`


@dataclass(frozen=True, kw_only=True)
class CorpusSchema(InputSchema):
    """The text of pre-training, which is not in the rows; the task knows the files."""

    task: "Pretrain"

    def sample_texts(self, rows: Rows, count: int) -> list[str]:
        source = self.task.state.training_source
        return list(islice(iter_raw_texts(source.files, self.task.build_text_options(source)), count))


class Pretrain(Task):
    """Pre-training of BERT (Devlin et al. 2018, 3.1), with the objectives of its ablations (5.1) and others.

    The other objectives are sentence order prediction (ALBERT) and replaced token detection (ELECTRA).
    Rows are documents, which `load_data` tokenizes.
    """

    definition = PRETRAIN
    state_class = PretrainState
    state: PretrainState

    def __init__(self, config: PretrainConfig) -> None:
        super().__init__(config if config.phases is None else apply_phases(config))

    @property
    def objective(self) -> Objective:
        """The objective that `--objective` names."""
        return OBJECTIVES[self.config.objective]

    @property
    def phases(self) -> list[Phase]:
        """The phases of `--phases`, or a single phase of `--max-length`."""
        return parse_phases(self.config.phases or f"{self.config.max_length}:1")

    @property
    def pipeline(self) -> TransformersPipeline:
        if self.state.tokenizer is None:
            return TransformersPipeline(task=self.objective.hub_task)
        return self.objective.build_pipeline(self.state.tokenizer)

    @property
    def training_phrase(self) -> str:
        return "further pre-trained by" if self.config.model else "pre-trained from scratch by"

    @property
    def default_hyperparameters(self) -> Mapping[str, Any]:
        hyperparameters = {"epochs": 1.0, "batch_size": 32, "warmup": WARMUP}
        if self.config.time_limit is not None:
            # As in Geiping and Goldstein 2022: a short run reads each text only a few times.
            dropout = {} if self.config.model else {"dropout": 0.0}
            hyperparameters |= {"warmup": SHORT_RUN_WARMUP, **dropout}
        return hyperparameters | {"learning_rate": self.state.learning_rate}

    @property
    def input_schema(self) -> InputSchema:
        return CorpusSchema(
            text_columns=("text",), hidden_columns=frozenset(["digest", "sentences", "characters"]), task=self
        )

    # ---- text

    def load_data(self) -> LoadedDataset:
        self.objective.validate_config(self.config)
        self.config.list_word_checkpoints()
        sources = self.find_sources()
        train = sources["train"]
        check_scratch_settings(self.config)
        if self.config.model:
            source = find_model(self.config.model)
        else:
            source = create_model_folder(self.config, MODEL_SIZES, train, self.build_text_options(train))
        tokenizer, corpus_set = load_tokenizer(source), CorpusSet()
        self.state = PretrainState(
            corpus_set=corpus_set, training_source=train, model_source=source, tokenizer=tokenizer,
            best_metric=(self.objective.best_metric, -1),
        )  # fmt: skip
        if tokenizer.mask_token_id is None and not self.objective.is_causal:
            flag = "--model" if self.config.model else "--tokenizer"
            raise UserError(
                f"{flag} {source.name}: the tokenizer has no [MASK] token; pass another one, or "
                "--objective ltr"
            )
        return self.load_splits(
            sources, partial(corpus_set.add_corpus, tokenizer=tokenizer, word_units=self.config.word_units)
        )

    def load_splits(
        self, sources: Mapping[str, TextSource], load: Callable[..., tuple[Rows, list[str]]]
    ) -> LoadedDataset:
        """Return the documents of each split, which `load` reads: it gets text, options and `split_few`."""
        train = sources["train"]
        splits, notes = {}, list(train.notes)
        for split, text in sources.items():
            # Validation text is held out by document, which requires several documents.
            split_few = split == "train" and "validation" not in sources
            splits[split], split_notes = load(text, self.build_text_options(text), split_few)
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

    # ---- rows

    def parse_dataset(self, dataset: LoadedDataset) -> LoadedDataset:
        return dataset

    def parse_rows(self, rows: Rows, split: str = "", require_labels: bool = False) -> tuple[Rows, list[str]]:
        return rows, []

    def make_split_keys(self, rows: Rows) -> SplitKeys:
        digests = rows.hash_columns(["digest"])
        return SplitKeys(digests, digests, stratum=np.zeros(len(rows), int), unit=self.definition.unit)

    def validate_splits(self, splits: Splits) -> None:
        self.objective.validate_config(self.config)

    def load_state(self, model_config: Any) -> None:
        raise UserError("a pre-trained model cannot predict rows; fine-tune it by passing it to --model")

    # ---- model

    def describe(self) -> str:
        config = self.config
        if self.objective.is_causal:
            return "each token" + self.objective.description
        unit = f"tokens, in whole {config.word_units}" if config.whole_word_masking else "tokens"
        return f"{config.mlm_probability:.0%} of the {unit}{self.objective.description}"

    def resolve_model(self, is_model_requested: bool, needs_weights: bool = True) -> ModelSource:
        return self.state.model_source

    def configure_model(self, model_config: Any, source: ModelSource) -> Any:
        max_positions = get_max_positions(model_config)
        if self.config.phases is not None and max_positions is not None:
            for phase in self.phases:
                if phase.length > max_positions:
                    raise UserError(
                        f"--phases {phase}: {source.name} has {max_positions} positions; use shorter phases"
                    )
        is_continued = bool(self.config.model)
        self.state.learning_rate = (
            CONTINUED_LEARNING_RATE if is_continued else suggest_pretraining_rate(model_config)
        )
        model_config = self.objective.configure_model(model_config, source.name, self.state.tokenizer)
        if self._uses_ppmi:
            size = getattr(model_config, "embedding_size", model_config.hidden_size)
            if model_config.vocab_size < size:  # too small for a factorization
                raise UserError(
                    f"--embedding-init ppmi: the vocabulary has {model_config.vocab_size:,} tokens, fewer "
                    f"than the embedding size {size:,}; use a larger --vocab-size, or --embedding-init random"
                )
        if is_continued:
            heads = find_missing_heads(self.objective.auto_class, source, load_config(source))
            new_heads = (
                f"re-initialized heads for {' and '.join(heads)} (not in its weights)" if heads else ""
            )
            if "tokens" in heads and self.objective.predicts_tokens:
                report_warning(
                    f"{source.name}: its weights have no head that predicts tokens; training a new one can "
                    "make the encoder worse; use a model with such a head, or compare fine-tuning from both "
                    "models"
                )
            notes = [new_heads, self.objective.describe_model(source, self.config)]
            self.state.head_note = ", ".join(filter(None, notes))
        else:
            self.state.head_note = "token embeddings from PPMI" if self._uses_ppmi else ""
        return model_config

    @property
    def _uses_ppmi(self) -> bool:
        return bool(self.config.embedding_init == "ppmi")

    def build_model(self, model_config: Any, source: ModelSource) -> Any:
        model = self.objective.build_model(model_config, source, self.config)
        if source.is_new and self._uses_ppmi:
            shape = model.base_model.get_input_embeddings().weight.shape
            corpus, documents = self.state.corpus_set.locate_documents(self.state.training_rows)
            vectors = distributed.on_main_process(
                load_token_vectors, corpus, documents, *shape, self.config.seed
            )
            set_token_embeddings(model, vectors)
        if self.config.dropout is not None:
            set_dropout(model, self.config.dropout)
        return model

    # ---- examples

    def featurize(self, rows: Rows, tokenizer: Any, training: bool = False) -> Features:
        if not training:
            return self._build_features(rows, tokenizer, self.config.max_length)
        self.state.training_rows = rows
        features = [self._build_features(rows, tokenizer, phase.length) for phase in self.phases]
        return PhasedFeatures.from_phases(self.phases, features)

    def _build_features(self, rows: Rows, tokenizer: Any, max_length: int) -> CorpusFeatures:
        """Return examples of at most `max_length` tokens."""
        config = self.config
        corpus, documents = self.state.corpus_set.locate_documents(rows)
        template = SequenceTemplate.from_tokenizer(tokenizer, pair=config.has_pairs)
        build_plan = partial(
            plan_epoch, self.objective.plan_examples, corpus, documents,
            max_length - template.num_special_tokens, config.seed, short_seq_prob=config.short_seq_prob,
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
        count = self.config.preview
        if count is None:
            return None
        features = features.phase_features[0]
        pad = PaddingCollator(tokenizer.pad_token_id, return_token_type_ids=False)
        collator = self.objective.build_collator(self.config, tokenizer, pad, self.phases[0].length)
        indices = sample_indices(features, count)
        samples = list(decode_masked_samples(features, collator, tokenizer, indices))
        items = [features[index] for index in indices]
        statistics: Scores = {"examples": len(items)}
        statistics |= collator.measure(items, find_continuation_tokens(tokenizer))
        if collator.has_pairs:
            statistics["is_next"] = float(np.mean([item["next_sentence_label"] == 0 for item in items]))
        statistics["padding"] = float((collator.pad(items)["attention_mask"] == 0).float().mean())
        notes = []
        if len(features) < count:
            notes.append(f"an epoch has only {len(features):,} examples: all are shown")
        return Preview(statistics, samples, notes)

    def make_collator(self, tokenizer: Any, model: Any) -> Callable[..., Any]:
        pad, build_collator = super().make_collator(tokenizer, model), self.objective.build_collator
        collator = build_collator(self.config, tokenizer, pad, self.config.max_length)
        self.state.eval_collator = collator
        phase_collators = [build_collator(self.config, tokenizer, pad, phase.length) for phase in self.phases]
        return PhasedCollator(phase_collators, collator)

    def make_loss(self, features: Any) -> Loss:
        return self.objective.make_loss()

    # ---- scores

    def evaluate(self, outputs: Outputs) -> "PretrainEvaluation":
        return PretrainEvaluation(outputs, self)

    def fit_decision(self, evaluation: Evaluation) -> None:
        self.state.validation_sums = evaluation.outputs.logits

    def fit_baselines(self, train: Rows, rows: Rows) -> dict[str, Scorer]:
        """Return `unigram`, which predicts tokens by their training frequency, and those of the objective.

        Their scores are those of whole texts, and do not depend on which tokens an example masks.
        """
        locate_documents = self.state.corpus_set.locate_documents
        unigram = score_unigram(*locate_documents(train), *locate_documents(rows), self.objective.part)
        baselines = self.objective.score_baselines(unigram, self.state.validation_sums)
        tokens_per_byte = self.count_tokens_per_byte(rows)
        return {
            name: Scorer.constant(self.add_bits_per_byte(scores, tokens_per_byte))
            for name, scores in baselines.items()
        }

    def count_tokens_per_byte(self, rows: Rows) -> float:
        """Return the tokens of these documents per byte of their text."""
        corpus, documents = self.state.corpus_set.locate_documents(rows)
        return corpus.count_tokens_per_byte(documents)

    def add_bits_per_byte(self, scores: Scores, tokens_per_byte: float) -> Scores:
        """Add the loss of tokens as bits per byte of the text, which no vocabulary changes."""
        if (loss := scores.get(f"{self.objective.part}_loss")) is None:
            return scores
        return {**scores, "bits_per_byte": loss * tokens_per_byte / math.log(2)}


# ---- documents as rows, which are split, sampled and deduplicated like any other rows

MIN_DOCUMENTS = 20  # if there are fewer documents, parts of documents are held out


@dataclass(frozen=True)
class CorpusSet:
    """The corpora of a run. Their documents are numbered consecutively over all corpora.

    Attributes:
        entries: The number of the first document of each corpus, and the corpus.
    """

    entries: list[tuple[int, Corpus]] = field(default_factory=list)

    def add_corpus(
        self, text: TextSource, options: TextOptions, split_few: bool, tokenizer: Any, word_units: WordUnits
    ) -> tuple[Rows, list[str]]:  # fmt: skip
        """Load a corpus, add it to the set, and return its documents as rows, with notes for the user.

        The rows have the number of the document and a digest of its tokens. With `split_few`, few documents
        are split; see `split_few_documents`.
        """
        corpus = load_corpus(text.files, options, tokenizer, word_units)
        notes = list(corpus.notes)
        if split_few:
            corpus, split_notes = split_few_documents(corpus)
            notes += split_notes
            if len(corpus.document_offsets) == 2:
                count = len(corpus.sentence_offsets) - 1
                size = "only one sentence" if count == 1 else f"one document of only {count} sentences"
                raise UserError(
                    f"{format_list(text.files)}: found {size}, so no text can be held out for validation; "
                    "add text or pass --validation FILE"
                )
        first = sum(len(other.document_offsets) for _, other in self.entries)
        self.entries.append((first, corpus))
        digests = corpus.list_digests()
        numbers = list(range(first, first + len(digests)))
        return Rows.from_columns({"document": numbers, "digest": digests}, format_list(text.files)), notes

    def __deepcopy__(self, memo: dict[int, Any]) -> "CorpusSet":
        """Return the same object, because a run does not change the corpora, which may be large."""
        return self

    def locate_documents(self, rows: Rows) -> tuple[Corpus, np.ndarray]:
        """Return the corpus of the given rows, and the indices of their documents in this corpus."""
        numbers = np.array(rows["document"])
        first, corpus = next(entry for entry in reversed(self.entries) if entry[0] <= numbers[0])
        return corpus, numbers - first


def split_few_documents(corpus: Corpus) -> tuple[Corpus, list[str]]:
    """Split the documents of a corpus into parts if there are fewer than `MIN_DOCUMENTS`.

    The `parent_ids` of the returned corpus are the original documents of the parts.
    """
    num_documents = len(corpus.document_offsets) - 1
    if num_documents >= MIN_DOCUMENTS:
        return corpus, []
    num_sentences = int(corpus.document_offsets[-1])
    num_parts = min(MIN_DOCUMENTS, max(1, num_sentences // 2))  # of two sentences or more on average
    boundaries = np.linspace(0, num_sentences, num_parts + 1).astype(np.int64)
    offsets = np.union1d(corpus.document_offsets, boundaries).astype(corpus.document_offsets.dtype)
    subject = "one document" if num_documents == 1 else f"only {num_documents} documents"
    note = f"{subject}: split into {format_count(len(offsets) - 1, 'part')}, of which some are held out"
    parents = np.searchsorted(corpus.document_offsets, offsets[:-1], "right") - 1
    return replace(corpus, document_offsets=offsets, parent_ids=parents, digests=None), [note]


# ---- masked examples as predictions

NUM_SAMPLES = 100  # examples in masked_samples.jsonl
PAIR_LABELS = ("IsNext", "NotNext")  # 0 and 1, as in transformers


class PretrainEvaluation(Evaluation):
    """The losses of the examples, and a sample of the masked examples."""

    def __init__(self, outputs: Outputs, task: Pretrain) -> None:
        super().__init__(outputs)
        self.task = task

    @cached_property
    def tokens_per_byte(self) -> float:
        return self.task.count_tokens_per_byte(self.outputs.rows)

    @cached_property
    def scores(self) -> Scores:
        return self._score(self.outputs.logits)

    @cached_property
    def scorer(self) -> Scorer:
        logits = self.outputs.logits
        return Scorer(lambda rows: self._score(logits[rows]), len(logits))

    def _score(self, sums: np.ndarray) -> Scores:
        scores = self.task.objective.score(sums, self.task.config.has_pairs)
        return self.task.add_bits_per_byte(scores, self.tokens_per_byte)

    def iter_records(self, score_detail: ScoreDetail = "default") -> Iterator[dict[str, Any]]:
        features, logits = self.outputs.features, self.outputs.logits
        indices = sample_indices(features, NUM_SAMPLES)
        loss_sums, num_predictions = logits[indices, 0], logits[indices, 2]
        losses = loss_sums / num_predictions.clip(1)
        # The collator masks the same tokens as when the losses were computed.
        collator, tokenizer = self.task.state.eval_collator, self.task.state.tokenizer
        samples = decode_masked_samples(features, collator, tokenizer, indices)
        for sample, loss in zip(samples, losses.tolist(), strict=True):
            yield {**sample, f"{self.task.objective.part}_loss": loss}


def sample_indices(features: Any, count: int) -> list[int]:
    """Return the sorted indices of at most `count` random examples of the first epoch."""
    order = np.random.default_rng(features.seed).permutation(len(features))
    return np.sort(order[:count]).tolist()


def decode_masked_samples(
    features: Any, collator: MlmCollator | CausalLmCollator, tokenizer: Any, indices: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Yield the text of these examples as the model reads it (`masked`), and the `tokens` to predict."""
    for index in indices:
        item = features[index]
        batch = collator([item])
        is_used = batch["masked_lm_labels"][0] >= 0
        positions = batch["masked_lm_positions"][0][is_used].tolist()
        labels = batch["masked_lm_labels"][0][is_used].tolist()
        sample = {
            "masked": " ".join(tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())),
            "positions": positions,
            "tokens": tokenizer.convert_ids_to_tokens(labels),
        }
        if collator.has_pairs:
            sample["pair"] = PAIR_LABELS[int(item["next_sentence_label"])]
        yield sample
