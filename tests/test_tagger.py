"""Taggers: any layers of any encoder, a frozen one's vectors read from the cache as if just computed."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import NEUTRAL_WORDS, make_tokenizer, save_tiny_model
from transformers import AutoConfig, AutoModel, DistilBertConfig, RobertaConfig

import bertkit
from bertkit.data.collators import PaddingCollator, pad_vectors
from bertkit.data.features import TextFeatures, build_features
from bertkit.models.encoder import VectorFeatures, compute_vectors
from bertkit.models.layers import freeze_layers, map_parameters_to_layers
from bertkit.models.loading import ModelSource, find_run_model, takes_token_type_ids
from bertkit.models.tagger import FEATURE_LAYERS, Tagger, load_tagger
from bertkit.utils.compat import get_argument_name

LABELS, LAYERS = 5, 5
IDS = {"vocab_size": len(make_tokenizer()), "pad_token_id": 0, "max_position_embeddings": 64}
CONFIGS = {
    "bert": None,
    "roberta": RobertaConfig(**IDS, hidden_size=32, num_hidden_layers=LAYERS, num_attention_heads=2,
                             intermediate_size=64, type_vocab_size=1),
    "distilbert": DistilBertConfig(**IDS, dim=32, n_layers=LAYERS, n_heads=2, hidden_dim=64),
}  # fmt: skip
JOINED = {
    "last": 1,
    "second-to-last": 1,
    "sum-last-4": 4,
    "concat-last-4": 4,
    "sum-all": LAYERS,
    "embeddings": 1,
}


@pytest.fixture(scope="module", params=CONFIGS)
def folder(request, tmp_path_factory):
    """A tiny encoder of five layers, with dropout."""
    return save_tiny_model(
        tmp_path_factory.mktemp("models") / request.param, CONFIGS[request.param], num_hidden_layers=LAYERS
    )


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("models") / "five", num_hidden_layers=LAYERS)


def tagger(folder, features=None, head="bilstm", new_head=True, **config):
    torch.manual_seed(1)
    labels = {} if "id2label" in config else {"num_labels": LABELS}
    config = AutoConfig.from_pretrained(folder, **labels, **config)
    return load_tagger(ModelSource("tiny", folder), config, features, head, new_head).eval()


def batch(lengths=(7, 4, 9), left=False, more=0):
    """Return random tokens of these lengths, independent of the padding; `more` adds padding."""
    torch.manual_seed(2)
    ids = torch.zeros(len(lengths), max(lengths) + more, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        start = ids.shape[1] - length if left else 0
        ids[row, start : start + length] = torch.randint(5, 30, (length,))
        mask[row, start : start + length] = 1
    return {"input_ids": ids, "attention_mask": mask}


def real(model, given):
    """Return the logits of all tokens but padding, concatenated."""
    with torch.no_grad():
        return model(**given).logits[given["attention_mask"].bool()]


@pytest.mark.slow
@pytest.mark.parametrize("head", ["bilstm", "linear"])
@pytest.mark.parametrize("features", [None, *FEATURE_LAYERS])
def test_the_tagger_returns_logits_for_each_token(folder, features, head):
    model, given = tagger(folder, features, head), batch()
    wanted = JOINED.get(features, 1)
    assert model.compute_hidden_states(**given).shape == (3, 9, wanted, 32)
    assert model(**given).logits.shape == (3, 9, LABELS)
    inputs = 32 * (wanted if features == "concat-last-4" else 1)
    assert model.output.in_features == (64 if head == "bilstm" else inputs)
    assert takes_token_type_ids(model) == (model.config.model_type not in ("distilbert", "roberta"))
    kinds = torch.zeros_like(given["input_ids"])  # none of an encoder that has no segments
    assert torch.equal(real(model, {**given, "token_type_ids": kinds}), real(model, given))


@pytest.mark.slow
@pytest.mark.parametrize("features", FEATURE_LAYERS)
def test_features_combine_the_named_layers(bert, features):
    model, given = tagger(bert, features), batch()
    with torch.no_grad():
        states = AutoModel.from_pretrained(bert).eval()(**given, output_hidden_states=True).hidden_states
    numbers = {"last": [5], "second-to-last": [4], "sum-all": [1, 2, 3, 4, 5], "embeddings": [0]}
    wanted = torch.stack([states[number] for number in numbers.get(features, [2, 3, 4, 5])], 2)
    torch.testing.assert_close(
        model.compute_hidden_states(**given), wanted, atol=2e-3, rtol=1e-3
    )  # rounded to 16 bits


def trained(model, given, steps=3):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(steps):
        loss = model.train()(**given).logits.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def bits(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def same(some, others):
    return all(torch.equal(tensor, others[name]) for name, tensor in some.items())


@pytest.mark.slow
@pytest.mark.parametrize("features", FEATURE_LAYERS)
def test_a_frozen_encoder_never_changes(folder, features):
    model, given = tagger(folder, features), batch()
    encoder, head, vectors = bits(model.base_model), bits(model.output), model.compute_hidden_states(**given)
    assert not any(parameter.requires_grad for parameter in model.base_model.parameters())
    trained(model, given, steps=1)
    assert model.training
    assert same(encoder, bits(model.base_model))
    assert not same(head, bits(model.output))
    assert torch.equal(model.compute_hidden_states(**given), vectors)  # no dropout
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model.compute_hidden_states(**given), vectors)


@pytest.mark.parametrize("features", [None, "sum-last-4"])
def test_trains_in_bf16(bert, features):
    model = tagger(bert, features)
    with torch.autocast("cpu", torch.bfloat16):
        model(**batch([6, 6])).logits.float().square().mean().backward()  # oneDNN takes equal lengths
    assert model.bilstm.lstm.weight_ih_l0.grad.isfinite().all()


def test_without_features_the_encoder_is_trained_too(folder):
    model = tagger(folder)
    before = bits(model.base_model)
    assert not same(before, bits(trained(model, batch(), steps=1).base_model))


@pytest.mark.parametrize("head", ["bilstm", "linear"])
def test_padding_does_not_change_logits(folder, head):
    model = tagger(folder, None, head)
    wanted = real(model, batch())
    sides = [False] if model.config.model_type != "roberta" else [False, True]  # others count padding
    for left in sides:
        torch.testing.assert_close(real(model, batch(left=left, more=6)), wanted, atol=1e-6, rtol=0)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("features", ["last", "sum-last-4", "concat-last-4"])
def test_the_head_ignores_padding(bert, features, left):
    model, layers = tagger(bert, features), JOINED[features]
    vectors = torch.randn(2, 9, layers, 32)
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, :4] = 0
    alone = [real(model, {"vectors": v[m.bool()][None], "attention_mask": torch.ones(1, int(m.sum()))})
             for v, m in zip(vectors, mask, strict=True)]  # fmt: skip
    padding = (0, 0, 0, 0, 3, 0) if left else (0, 0, 0, 0, 0, 3)
    wide = torch.nn.functional.pad(vectors, padding, value=9.0)
    together = {"vectors": wide, "attention_mask": torch.nn.functional.pad(mask, padding[4:])}
    torch.testing.assert_close(real(model, together), torch.cat(alone), atol=1e-6, rtol=0)
    padded = ~together["attention_mask"].bool()
    assert torch.equal(model.bilstm(model.mix(wide) if model.mix else wide.flatten(2), ~padded)[padded],
                       torch.zeros(int(padded.sum()), 64))  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("features", FEATURE_LAYERS)
def test_cached_vectors_give_the_same_scores_as_input_ids(folder, features):
    model, given = tagger(folder, features), batch()
    vectors = model.compute_hidden_states(**given)
    kept = vectors.half()  # as the cache has them
    assert torch.equal(kept.float(), vectors)
    again = {"vectors": kept.float(), "attention_mask": given["attention_mask"]}
    assert torch.equal(real(model, again), real(model, given))


def test_a_weighted_sum_starts_as_the_mean_and_learns(bert):
    model = tagger(bert, "sum-last-4")
    vectors = torch.randn(2, 3, 4, 32)
    torch.testing.assert_close(model.mix(vectors), vectors.mean(2))
    trained(model, batch())
    assert model.mix.weights.unique().numel() == 4
    assert model.mix.scale != 1


# ---- saved and loaded


@pytest.mark.slow
@pytest.mark.parametrize(
    ("features", "head"),
    [(None, "linear"), ("last", "bilstm"), ("sum-all", "linear"), ("concat-last-4", "bilstm")],
)
def test_a_saved_tagger_is_loaded_unchanged(folder, features, head, tmp_path):
    model, given = trained(tagger(folder, features, head), batch(), steps=1).eval(), batch()
    model.save_pretrained(tmp_path / "run")
    again = tagger(tmp_path / "run", features, head, new_head=False)
    assert torch.equal(real(again, given), real(model, given))
    encoder = AutoModel.from_pretrained(tmp_path / "run")
    assert same(bits(model.base_model), bits(encoder))
    assert not same(bits(model.output), bits(tagger(tmp_path / "run", features, head).output))  # a new head


def test_sharded_weights_are_loaded(bert, tmp_path):
    from safetensors.torch import load_file, save_file

    model = tagger(bert, "sum-all")
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    index = {name: f"model-0000{number % 2 + 1}-of-00002.safetensors" for number, name in enumerate(weights)}
    for file in set(index.values()):
        save_file({n: t for n, t in weights.items() if index[n] == file}, tmp_path / file, {"format": "pt"})
    index = {"metadata": {"total_size": 0}, "weight_map": index}
    (tmp_path / "model.safetensors.index.json").write_text(str(index).replace("'", '"'))
    again = tagger(tmp_path, "sum-all", new_head=False)
    assert same(bits(model), bits(again))


@pytest.mark.parametrize(
    ("features", "head", "num_labels", "error"),
    [
        ("sum-all", "bilstm", 5, "trained with --head bilstm and --features last; pass the same, or"),
        ("last", "linear", 5, "trained with --head bilstm and --features last"),
        ("last", "bilstm", 6, "--model tiny: its head does not match .*output.bias"),
    ],
)
def test_a_mismatched_head_is_refused(bert, tmp_path, features, head, num_labels, error):
    tagger(bert, "last").save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path, num_labels=num_labels)
    with pytest.raises(bertkit.UserError, match=error):
        load_tagger(ModelSource("tiny", tmp_path), config, features, head, False)


def test_an_error_about_the_head_of_a_run_names_the_run_instead_of_a_flag(bert, tmp_path):
    tagger(bert, "last").save_pretrained(tmp_path)
    source = find_run_model(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path, num_labels=6)
    for features, problem in (("last", "does not match"), ("sum-all", "was trained with --head bilstm")):
        with pytest.raises(bertkit.UserError, match=problem) as refused:
            load_tagger(source, config, features, "bilstm", False)
        assert str(refused.value).startswith(f"{tmp_path}: its head ")
        assert str(refused.value).endswith("; train the run again")


def test_a_missing_head_is_refused(bert, tmp_path):
    with pytest.raises(
        bertkit.UserError, match=r"--model tiny: has no head of the requested kind; .* --new-head"
    ):
        tagger(bert, "last", new_head=False)
    model = tagger(bert, "last")
    model.mix = torch.nn.Linear(1, 1)  # weights that no such head has
    model.save_pretrained(tmp_path)
    with pytest.raises(
        bertkit.UserError, match=r"does not match \(missing or unknown: mix\.bias, mix\.weight"
    ):
        tagger(tmp_path, "last", new_head=False)


@pytest.mark.parametrize("features", ["sum-last-4", "concat-last-4"])
def test_too_few_layers_are_refused(tiny, features):
    message = (
        f"--features {features}: requires 4 layers, and the model has 2; "
        "use one of last, second-to-last, sum-all, embeddings"
    )
    with pytest.raises(bertkit.UserError, match=message):
        tagger(tiny, features)


def test_selected_layers_give_different_logits(folder):
    model = tagger(folder)
    assert set(map_parameters_to_layers(model, "--freeze").values()) == set(range(LAYERS + 2))
    freeze_layers(model, 2)
    assert {n for n, p in model.named_parameters() if not p.requires_grad and ".layer.2." in n} == set()
    assert all(not p.requires_grad for n, p in model.named_parameters() if ".layer.1." in n)
    assert model.output.weight.requires_grad


@pytest.mark.slow
@pytest.mark.parametrize("features", [None, "sum-last-4"])
def test_trainer_trains_and_resumes_a_tagger(bert, tmp_path, features):
    from transformers import Trainer, TrainingArguments

    class Squares(Trainer):
        def compute_loss(self, model, inputs, **_):
            return model(**inputs).logits.square().mean()

    def run(folder, **more):
        arguments = TrainingArguments(
            str(folder), max_steps=4, save_steps=2, use_cpu=True, report_to="none", disable_tqdm=True,
            remove_unused_columns=False, per_device_train_batch_size=2, seed=3,
            **{get_argument_name("activation_checkpointing"): True},
        )  # fmt: skip
        rows = [{name: t[0] for name, t in batch([5 + n % 3], more=2 - n % 3).items()} for n in range(8)]
        trainer = Squares(tagger(bert, features), arguments, train_dataset=rows)
        trainer.train(**more)
        return bits(trainer.model)

    whole = run(tmp_path / "whole")
    (tmp_path / "half").mkdir()
    shutil.copytree(tmp_path / "whole" / "checkpoint-2", tmp_path / "half" / "checkpoint-2")
    assert same(whole, run(tmp_path / "half", resume_from_checkpoint=True))


# ---- vectors from the cache


TEXTS = [" ".join(NEUTRAL_WORDS[: 1 + n * 7 % 13]) for n in range(10)]


def make_features(windows=False):
    """Features of ten texts of unlike lengths; with windows some have several sequences."""
    labels = np.arange(10) % 2
    return build_features([TEXTS], labels, make_tokenizer(), 8 if windows else 32, "windows", cache=False)


def kept(model, features):
    collator = PaddingCollator(0, takes_token_type_ids(model))
    return compute_vectors(model, features, collator, 3)


@pytest.mark.slow
@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.parametrize("features", ["last", "sum-last-4"])
def test_vectors_are_aligned_with_tokens(folder, features, windows):
    model, some = tagger(folder, features), make_features(windows)
    vectors = kept(model, some)
    assert isinstance(vectors, np.memmap)
    assert vectors.dtype == np.float16
    for number in range(len(some.sequence_lengths)):
        ids, _ = some.get_sequence(number)
        ids = torch.tensor(ids[None], dtype=torch.long)
        wanted = model.compute_hidden_states(ids, torch.ones_like(ids))[0].numpy()
        start, stop = some.token_offsets[number : number + 2]
        np.testing.assert_allclose(vectors[start:stop], wanted, atol=4e-3)


class Words(TextFeatures):
    """Another kind of features, with more to tell."""

    @property
    def word_of(self):
        return [len(self), "words"]


def test_vector_features_keep_all_other_fields():
    some = Words(**vars(make_features(windows=True)))
    vectors = np.arange(some.token_offsets[-1] * 6, dtype=np.float16).reshape(-1, 2, 3)
    found = VectorFeatures(some, vectors)
    assert len(found) == 10
    assert found.lengths.tolist() == some.lengths.tolist()
    assert found.length_keys.tolist() == some.length_keys.tolist()
    assert (found.num_truncated, found.max_untruncated_length, found.word_of) == (
        some.num_truncated,
        some.max_untruncated_length,
        some.word_of,
    )
    joined = np.concatenate([array for row in range(10) for array in found[row]["vectors"]])
    np.testing.assert_array_equal(joined, vectors)
    for row in range(10):
        assert found[row].keys() == {"vectors", "labels"}
        assert [len(v) for v in found[row]["vectors"]] == [len(ids) for ids in some[row]["input_ids"]]


def test_vectors_are_padded_on_the_right():
    vectors, mask = pad_vectors([np.ones((2, 1, 3), np.float16), np.full((3, 1, 3), 2, np.float16)])
    assert (vectors.dtype, mask.dtype) == (torch.float32, torch.int64)
    assert vectors[:, :, 0, 0].tolist() == [[1, 1, 0], [2, 2, 2]]
    assert mask.tolist() == [[1, 1, 0], [1, 1, 1]]


@pytest.fixture
def calls(monkeypatch):
    """How often an encoder was run for a tagger."""
    counted, hidden = [], Tagger.compute_hidden_states
    monkeypatch.setattr(Tagger, "compute_hidden_states", lambda *a, **k: counted.append(1) or hidden(*a, **k))
    return counted


def test_vectors_are_computed_once(bert, calls):
    first = kept(tagger(bert, "sum-last-4"), make_features())
    computed = len(calls)
    again = kept(
        tagger(bert, "concat-last-4", "linear", id2label={n: str(n) for n in range(7)}), make_features()
    )
    assert computed == len(calls) == 4  # ten texts by three
    np.testing.assert_array_equal(again, first)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["weights", "layers", "tokens"])
def test_the_cache_key_covers_everything_that_vectors_depend_on(bert, what, calls):
    kept(tagger(bert, "last"), make_features())
    model, computed = tagger(bert, "second-to-last" if what == "layers" else "last"), len(calls)
    if what == "weights":
        next(model.base_model.parameters()).data[7, 7] += 1e-3
    kept(model, make_features(windows=what == "tokens"))
    assert len(calls) > computed


def test_a_randomly_initialized_pooler_is_not_part_of_the_cache_key(bert, calls):
    kept(tagger(bert, "last"), make_features())
    model, computed = tagger(bert, "last"), len(calls)
    torch.nn.init.normal_(model.base_model.pooler.dense.weight)
    kept(model, make_features())
    assert len(calls) == computed


def test_without_a_cache_vectors_are_kept_in_memory(bert, monkeypatch, tmp_path):
    wanted = kept(tagger(bert, "last"), make_features())
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BERTKIT_CACHE_DIR", str(tmp_path / "file"))
    found = kept(tagger(bert, "last"), make_features())
    assert not isinstance(found, np.memmap)
    np.testing.assert_array_equal(found, wanted)


def test_full_disk_is_reported_before_computation(bert, monkeypatch, tmp_path, calls):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(
        bertkit.UserError,
        match=f"BERTKIT_CACHE_DIR {tmp_path}/cache: the encoder's outputs need 0 MB, but only 0 MB are free",
    ):
        kept(tagger(bert, "last"), make_features())
    assert not calls
    assert list((tmp_path / "cache" / "vectors").iterdir()) == []  # nothing half-written is left


def test_vectors_beyond_16_bits_are_refused(bert):
    model = tagger(bert, "last")
    model.base_model.encoder.layer[-1].output.LayerNorm.bias.data += 1e5
    with pytest.raises(bertkit.UserError, match="--features last: vectors exceed the range"):
        kept(model, make_features())
