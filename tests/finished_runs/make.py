"""Write the finished runs of this directory, as users of commit 370dadf have them.

`tests/test_finished_runs.py` uses them with the present code. A change of the code must not change them. To
add a run, install that commit in an environment of its own, and name the runs to write, by default all:

    git worktree add ../bertkit-370dadf 370dadf
    python -m venv ../bertkit-370dadf/.venv
    cd ../bertkit-370dadf && .venv/bin/pip install -c requirements/tested.txt -e '.[offline,dev]' && cd -
    ../bertkit-370dadf/.venv/bin/python tests/finished_runs/make.py multi-label regression

All paths are relative to this directory. Pages and checkpoints are left out, and so are the notes of PyTorch
in the exported graph.
"""

import json
import os
import random
import shutil
import sys
from pathlib import Path

# Before libraries are imported: the fixtures do not depend on the number of cores, and need no Hub.
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}

import bertkit

ROOT = Path(__file__).parent
TINY, DEEP = "models/one-layer", "models/two-layers"
THINGS = ["soup", "tea", "bread", "train", "room", "garden", "song", "film"]
GOOD, BAD = ["great", "warm", "bright", "fine"], ["cold", "late", "dull", "sad"]
PEOPLE, PLACES = ["anna", "ben", "carla"], ["paris", "rome", "oslo"]
WORDS = ["the", "was", "and", "in", "it", "we", "saw", "here", "today", "very", "what", "one", "."]
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = [*SPECIAL_TOKENS, *THINGS, *GOOD, *BAD, *PEOPLE, *PLACES, *WORDS]
SETTINGS = {"epochs": 16, "batch_size": 8, "learning_rate": 2e-2, "max_length": 16, "bf16": False}
LEFT_OUT = ["**/checkpoints", "**/*.html", "**/training_args.bin", "**/*lock", "cache"]


# ---- rows; some labels are wrong, so that scores are below 1 and a temperature fits


def make_texts(rng, count):
    """Yield different texts, each with whether it is good and how many of its words say so."""
    texts = set()
    while len(texts) < count:
        is_good = len(texts) % 2 == 0
        first, second = rng.sample(THINGS, 2)
        strength = rng.randint(1, 2)
        adjectives = rng.sample(GOOD if is_good else BAD, 2)
        text = f"the {first} was {adjectives[0]}"
        text += f" and the {second} was {adjectives[1]}" if strength == 2 else f" {rng.choice(WORDS[6:9])}"
        if text not in texts:
            texts.add(text)
            yield text, is_good, strength


def make_classify_rows(rng, count):
    names = ["negative", "positive"]
    return [
        {"text": text, "label": names[is_good != (number % 7 == 6)]}
        for number, (text, is_good, _) in enumerate(make_texts(rng, count))
    ]


def make_multi_label_rows(rng, count):
    return [
        {"text": text, "label": [*(["good"] if is_good else []), *(["long"] if strength == 2 else [])]}
        for text, is_good, strength in make_texts(rng, count)
    ]


def make_regression_rows(rng, count):
    return [
        {"text": text, "label": (strength if is_good else -strength) + rng.randint(0, 9) / 10}
        for text, is_good, strength in make_texts(rng, count)
    ]


def make_nli_rows(rng, count):
    rows = []
    for number in range(count):
        thing, other = rng.sample(THINGS, 2)
        side, wrong = rng.sample([GOOD, BAD], 2)
        word = rng.choice(side)
        hypotheses = {"entailment": (thing, word), "neutral": (other, word),
                      "contradiction": (thing, rng.choice(wrong))}  # fmt: skip
        label = rng.choice(list(hypotheses)) if number % 7 == 6 else list(hypotheses)[number % 3]
        subject, adjective = hypotheses[list(hypotheses)[number % 3]]
        rows.append({"premise": f"the {thing} was {word} {WORDS[number % 9]}",
                     "hypothesis": f"the {subject} was {adjective}", "label": label})  # fmt: skip
    return rows


def make_ner_rows(rng, count):
    rows = []
    for number in range(count):
        person, place = rng.choices(PEOPLE, k=1 + number % 2), rng.choice(PLACES)
        thing, adjective = rng.choice(THINGS), rng.choice(GOOD + BAD)
        tokens = [*person, "saw", "the", adjective, thing, "in", place, "."]
        tags = ["B-PER", *["I-PER"] * (number % 2), "O", "O", "O", "O", "O", "B-LOC", "O"]
        if number % 6 == 5:  # of the tags, not of the words
            tags[-2] = "O"
        rows.append({"tokens": tokens, "tags": tags})
    return rows


def make_qa_rows(rng, count):
    rows = []
    for number in range(count):
        first, second, other = rng.sample(THINGS, 3)
        good, bad = rng.choice(GOOD), rng.choice(BAD)
        context = f"the {first} was {good} and the {second} was {bad}"
        thing = other if number % 4 == 3 else first if number % 2 else second
        found = {"text": thing, "answer_start": context.find(f" {thing} ") + 1}
        word = good if thing == first else bad
        rows.append({
            "id": f"q{number}", "question": f"what was {word if number % 4 < 3 else 'here'}",
            "context": context, "answers": [] if thing == other else [found],
        })  # fmt: skip
    return rows


def make_swag_rows(rng, count):
    rows = []
    for number in range(count):
        thing, *others = rng.sample(THINGS, 4)
        label = rng.randrange(4)
        endings = [f"it was {word}" for word in rng.sample(BAD, 4)]
        endings[label] = f"it was {rng.choice(GOOD)}"
        stated = (label + 1) % 4 if number % 7 == 6 else label
        rows.append(
            {"context": f"we saw the {thing} and the {others[0]}", "endings": endings, "label": stated}
        )
    return rows


def make_documents(rng, count):
    documents = []
    for _ in range(count):
        thing, side = rng.choice(THINGS), rng.choice([GOOD, BAD])
        lines = [f"the {thing} was {word} ." for word in rng.sample(side, 2)]
        lines += [f"we saw {rng.choice(PEOPLE)} in {rng.choice(PLACES)} .", f"it was {rng.choice(side)} ."]
        documents.append({"text": " ".join(lines)})
    return documents


ROW_MAKERS = {
    "classify": make_classify_rows, "multi-label": make_multi_label_rows, "regression": make_regression_rows,
    "nli": make_nli_rows, "ner": make_ner_rows, "qa": make_qa_rows, "swag": make_swag_rows,
    "text": make_documents,
}  # fmt: skip
SPLITS = {"train": (1, 56), "validation": (2, 24), "test": (3, 12)}  # seed and number of rows
WITH_TEST = ["classify", "ner"]


def write_data():
    """Write the rows of each task as JSON lines."""
    for name, make in ROW_MAKERS.items():
        for split, (seed, count) in SPLITS.items():
            if split == "test" and name not in WITH_TEST:
                continue
            rows = make(random.Random(f"{name} {seed}"), count)
            path = Path("data", f"{name}-{split}.jsonl")
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def save_models():
    """Save random models of one and of two layers, with a tokenizer of whole words."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    ids = {token: number for number, token in enumerate(VOCABULARY)}
    backend = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, ids[token]) for token in ("[CLS]", "[SEP]")],
    )  # fmt: skip
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]", mask_token="[MASK]",
    )  # fmt: skip
    for folder, layers in ((TINY, 1), (DEEP, 2)):
        torch.manual_seed(layers)
        config = BertConfig(
            vocab_size=len(ids), hidden_size=8, num_hidden_layers=layers, num_attention_heads=2,
            intermediate_size=16, max_position_embeddings=32, initializer_range=0.3,
        )  # fmt: skip
        BertModel(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)


# ---- runs


def name_data(name, splits=("train", "validation")):
    """Return the settings that name the files with these rows."""
    return {("data" if split == "train" else split): f"data/{name}-{split}.jsonl" for split in splits}


def train(name, task=None, data=None, **settings):
    """Write a run of fine-tuning."""
    splits = [split for split in SPLITS if split != "test" or (data or name) in WITH_TEST]
    settings = {"model": TINY, **name_data(data or name, splits), **SETTINGS, **settings}
    getattr(bertkit, task or name)(output_dir=name, **settings)


def pretrain(name, **settings):
    """Write a run of pre-training."""
    bertkit.pretrain_mlm_nsp(
        **name_data("text"), tokenizer=TINY, num_layers=1, hidden_size=8, num_heads=2, max_length=32,
        max_steps=60, batch_size=16, learning_rate=1e-2, bf16=False, output_dir=name, **settings,
    )  # fmt: skip


def calibrate():
    """Write a run, and calibrate it."""
    shutil.copytree("classify", "calibrated")
    bertkit.calibrate("calibrated", threshold="f1", coverage=0.8)


def evaluate(run, **settings):
    """Score a run whose directory has no predictions of its present state."""
    bertkit.evaluate(run, output_dir=f"{run}-evaluation", **settings)


def study():
    """Write a study with a search, folds, the ensemble of their runs, and label issues."""
    splits = name_data("classify", ("train", "test"))
    searched = {"trials": 2, "search": ["learning_rate=0.01..0.04:log"]}
    bertkit.study(
        "classify", **splits, model=TINY, folds=2, **searched, output_dir="study", **SETTINGS | {"epochs": 24}
    )
    bertkit.label_issues("study")


def distill():
    """Write a run of a student that also learns the hidden states of its teacher."""
    bertkit.distill(
        "classify", num_layers=1, hidden_loss_weight=0.5, output_dir="distilled", learning_rate=1e-2
    )


RUNS = {
    "classify": lambda: train("classify", model=DEEP),
    "multi-label": lambda: train("multi-label", "classify"),
    "regression": lambda: train("regression", "classify"),
    "contrastive": lambda: train("contrastive", "classify", "classify", method="contrastive", epochs=2),
    "nli": lambda: train("nli"),
    "ner": lambda: train("ner"),
    "bilstm": lambda: train("bilstm", "ner", "ner", features="last", head="bilstm", epochs=24),
    "qa": lambda: train("qa", squad="v2", max_length=24, n_best=4, epochs=20),
    "swag": lambda: train("swag"),
    "pretrain-mlm-nsp": lambda: pretrain("pretrain-mlm-nsp"),
    "left-to-right": lambda: pretrain("left-to-right", objective="ltr"),
    "replaced-tokens": lambda: pretrain("replaced-tokens", objective="rtd"),
    "calibrated": calibrate,
    "calibrated-evaluation": lambda: evaluate("calibrated"),
    "exported": lambda: bertkit.export("classify", output_dir="exported"),
    "distilled": distill,
    "study": study,
    "study-evaluation": lambda: evaluate("study", data="data/classify-validation.jsonl"),
}


def clean():
    """Delete what no command reads, and make all paths relative to this directory."""
    for pattern in LEFT_OUT:
        for path in list(ROOT.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in ROOT.rglob("*"):
        if path.suffix in (".yaml", ".json", ".jsonl", ".md") and path.is_file():
            text = path.read_text("utf-8")
            path.write_text(text.replace(f"{ROOT}/", "").replace(str(ROOT), "."), "utf-8")
    for path in ROOT.rglob("*.onnx"):
        remove_notes(path)


def remove_notes(path):
    """Remove what the exporter notes about each node of a graph: Python code, and paths of this machine."""
    import onnx

    model = onnx.load(path)
    for item in (*model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output):
        del item.metadata_props[:]
        item.doc_string = ""
    onnx.save(model, path)


def main(names):
    os.chdir(ROOT)
    os.environ["BERTKIT_CACHE_DIR"] = "cache"
    write_data()
    save_models()
    for name in names or RUNS:
        shutil.rmtree(name, ignore_errors=True)
        print(name)
        RUNS[name]()
    clean()


if __name__ == "__main__":
    main(sys.argv[1:])
