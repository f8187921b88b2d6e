"""Token embeddings from PPMI: `--embedding-init ppmi`."""

import numpy as np
import pytest
from conftest import make_document_rows, write_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

import bertkit
from bertkit.data.corpus import store
from bertkit.data.corpus.store import Corpus, compute_ppmi, compute_token_vectors, count_cooccurrences
from bertkit.models.scratch import build_config

VOCAB_SIZE = 7
SHAPE = {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "vocab_size": 60, "max_length": 32}


def build_corpus(documents):
    """Return a corpus in which each document is one sentence."""
    offsets = np.cumsum([0, *map(len, documents)]).astype(np.uint32)
    token_ids = np.array([token for document in documents for token in document], np.uint16)
    return Corpus(token_ids, offsets, np.arange(len(documents) + 1, dtype=np.uint32))


def count_by_definition(documents, window):
    counts = np.zeros((VOCAB_SIZE, VOCAB_SIZE))
    for document in documents:
        for start in range(0, len(document), window):
            tokens = sorted(set(document[start : start + window]))
            for one in tokens:
                for other in tokens:
                    counts[one, other] += one != other
    return counts


documents_strategy = st.lists(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=20), min_size=1)


@pytest.mark.slow
@settings(max_examples=50)
@given(documents_strategy, st.integers(1, 8), st.integers(1, 40))
def test_counts_are_those_of_the_definition(documents, window, block):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "WINDOW", window)
        patch.setattr(store, "BLOCK_TOKENS", block)
        counts = count_cooccurrences(build_corpus(documents), np.arange(len(documents)), VOCAB_SIZE)
    np.testing.assert_array_equal(counts.todense(), count_by_definition(documents, window))


def test_only_the_given_documents_count():
    documents = [[0, 1], [2, 3], [4, 5], [4, 6]]
    corpus = build_corpus(documents)
    counts = count_cooccurrences(corpus, np.array([1, 3]), VOCAB_SIZE)
    np.testing.assert_array_equal(counts.todense(), count_by_definition([[2, 3], [4, 6]], 64))


def test_evenly_spaced_windows_of_a_long_text_are_used(monkeypatch):
    monkeypatch.setattr(store, "WINDOW", 2)
    monkeypatch.setattr(store, "MAX_TOKENS", 4)
    one_document = build_corpus([[0, 1, 2, 3, 4, 5]])
    counts = count_cooccurrences(one_document, np.arange(1), VOCAB_SIZE)
    np.testing.assert_array_equal(counts.todense(), count_by_definition([[0, 1], [4, 5]], 2))


@pytest.mark.slow
@settings(max_examples=50)
@given(documents_strategy)
def test_ppmi_is_that_of_the_definition(documents):
    counts = count_cooccurrences(build_corpus(documents), np.arange(len(documents)), VOCAB_SIZE)
    dense = counts.todense().astype(float)
    expected = np.zeros_like(dense)
    for one, other in zip(*dense.nonzero(), strict=True):
        joint = dense[one, other] / dense.sum()
        independent = dense[one].sum() / dense.sum() * dense[other].sum() / dense.sum()
        expected[one, other] = max(0.0, np.log(joint / independent))
    np.testing.assert_allclose(compute_ppmi(counts).todense(), expected, atol=1e-5)


def test_tokens_with_the_same_neighbors_have_similar_vectors():
    # tokens 0 and 1 are followed by 2 and 3, tokens 4 and 5 by 6; no document contains two of the same kind
    documents = [[0, 2, 3], [1, 2, 3], [4, 6], [5, 6]] * 3
    vectors = compute_token_vectors(build_corpus(documents), np.arange(12), 8, 4, seed=0)
    assert vectors.shape == (8, 4)
    assert not vectors[7].any()  # does not occur
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-5)
    np.testing.assert_allclose(vectors[4], vectors[5], atol=1e-5)
    assert abs(vectors[0] @ vectors[4]) < 1e-5 < vectors[0] @ vectors[1]


# ---- runs


def pretrain(tmp_path, name="run", **settings):
    data = write_rows(tmp_path / "text.jsonl", make_document_rows(60))
    usual = {
        **SHAPE,
        "objective": "mlm",
        "max_steps": 1,
        "learning_rate": 0.0,
        "batch_size": 8,
        "bf16": False,
    }
    return bertkit.pretrain_mlm_nsp(data=data, output_dir=tmp_path / name, **usual | settings)


def read_embeddings(run):
    weights = load_file(run.output_dir / "model.safetensors")
    [name] = [name for name in weights if name.endswith(".word_embeddings.weight")]
    return weights[name].numpy()


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["mlm", "mlm+nsp", "ltr", "rtd"])
def test_embeddings_are_scaled_vectors_of_the_training_text(objective, tmp_path, monkeypatch):
    computed = []

    def compute(corpus, documents, *args):
        computed.extend([documents, compute_token_vectors(corpus, documents, *args)])
        return computed[1]

    monkeypatch.setattr(store, "compute_token_vectors", compute)
    new = read_embeddings(pretrain(tmp_path, "new", objective=objective))
    assert not computed
    run = pretrain(tmp_path, objective=objective, embedding_init="ppmi")
    documents, vectors = computed
    assert len(documents) == run.metrics["data"]["train"]
    assert len(computed) == 2
    again = pretrain(tmp_path, "again", objective=objective, embedding_init="ppmi")
    assert len(computed) == 2  # the cached vectors are used
    embeddings = read_embeddings(run)
    np.testing.assert_array_equal(read_embeddings(again), embeddings)
    occurs = vectors.any(1)
    scale = embeddings[occurs].std() / vectors[occurs].std()
    np.testing.assert_allclose(embeddings[occurs], vectors[occurs] * scale, rtol=1e-5)
    np.testing.assert_array_equal(embeddings[~occurs], new[~occurs])  # [PAD], [MASK]
    assert embeddings[occurs].std() == pytest.approx(
        build_config("bert", 60, (1, 16, 2), 0).initializer_range, rel=0.2
    )
    if objective == "rtd":
        generator = load_file(run.output_dir / "generator" / "model.safetensors")
        np.testing.assert_array_equal(
            generator["electra.embeddings.word_embeddings.weight"].numpy(), embeddings
        )


@pytest.mark.slow
def test_resumed_run_is_bit_identical(tmp_path, cli):
    run = pretrain(
        tmp_path, embedding_init="ppmi", max_steps=4, save_steps=2, learning_rate=1e-3, dropout=0.0
    )
    before = (run.output_dir / "model.safetensors").read_bytes()
    for name in ("metrics.json", "model.safetensors"):
        (run.output_dir / name).unlink()
    assert cli("pretrain-mlm-nsp", "--resume", "-o", run.output_dir)[0] == 0
    assert (run.output_dir / "model.safetensors").read_bytes() == before


@pytest.mark.slow
def test_console_names_the_embeddings(tmp_path, cli):
    data = write_rows(tmp_path / "text.jsonl", make_document_rows(60))
    args = [
        "--data",
        data,
        "--embedding-init",
        "ppmi",
        "--hidden-size",
        16,
        "--num-heads",
        2,
        "--num-layers",
        1,
    ]
    status, _, err = cli("pretrain-mlm-nsp", *args, "--vocab-size", 60, "--dry-run", "-o", tmp_path / "run")
    assert status == 0
    assert "token embeddings from PPMI" in err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_size": 64}, "--embedding-init ppmi: the vocabulary has 60 tokens, fewer than .* 64; use"),
        ({"model": "tiny"}, "--embedding-init: applies only to a model from scratch"),
    ],
)
def test_bad_settings_are_refused(settings, message, tmp_path, tiny):
    if "model" in settings:
        settings = {"model": tiny, **dict.fromkeys(SHAPE)}
    with pytest.raises(bertkit.UserError, match=message):
        pretrain(tmp_path, embedding_init="ppmi", **settings)


def test_text_without_neighbors_is_refused():
    with pytest.raises(bertkit.UserError, match="no document has two different tokens"):
        compute_token_vectors(build_corpus([[3, 3], [4]]), np.arange(2), VOCAB_SIZE, 2, seed=0)
