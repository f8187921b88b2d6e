"""Tiny models of every type of encoder, each with the kind of tokenizer that its published models have."""

import functools
import json
import random

from conftest import NEGATIVE_WORDS, NEUTRAL_WORDS, POSITIVE_WORDS, SPECIAL_TOKENS
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

KOREAN_PEOPLE, KOREAN_WORDS = ["김민수", "이서연", "박지훈"], ["오늘", "그리고", "보았다", "천천히"]
CHINESE_PLACES, CHINESE_WORDS = ["北京", "上海", "广州"], ["今天", "我们", "看见", "很好"]
WORDS = [*POSITIVE_WORDS, *NEGATIVE_WORDS, *NEUTRAL_WORDS, *KOREAN_PEOPLE, *KOREAN_WORDS, *CHINESE_PLACES,
         *CHINESE_WORDS]  # fmt: skip
LETTERS = sorted(set("abcdefghijklmnopqrstuvwxyz0123456789.,!?'") | set("".join(WORDS)))


def make_wordpiece(class_name, special=SPECIAL_TOKENS):
    """A WordPiece tokenizer; `special` are the tokens [PAD], [UNK], [CLS], [SEP] and [MASK] of the class."""
    import transformers

    tokens = dict.fromkeys([*special, *WORDS, *LETTERS, *("##" + letter for letter in LETTERS)])
    vocab = {token: number for number, token in enumerate(tokens)}
    return getattr(transformers, class_name)(vocab=vocab, strip_accents=False)


def make_unigram(class_name, special, **options):
    """A tokenizer of SentencePiece's unigram kind; `special` are the first tokens of its vocabulary."""
    import transformers

    scores = {f"▁{word}": -1.0 for word in WORDS} | {"▁": -3.0} | dict.fromkeys(LETTERS, -5.0)
    vocab = [*((token, 0.0) for token in special), *scores.items()]
    return getattr(transformers, class_name)(vocab=vocab, **options)


def train_bpe(special):
    """A byte-level BPE of the words."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=special, initial_alphabet=alphabet)
    backend.train_from_iterator(WORDS * 3, trainer)
    return backend


def make_bpe(class_name, special, **options):
    """A byte-level BPE tokenizer of a class of transformers."""
    import transformers

    model = json.loads(train_bpe(special).to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    return getattr(transformers, class_name)(vocab=model["vocab"], merges=merges, **options)


def make_modernbert():
    """A byte-level BPE whose offsets include the space before a word, as those of ModernBERT."""
    from transformers import PreTrainedTokenizerFast

    cls, sep = "[CLS]", "[SEP]"
    backend = train_bpe(SPECIAL_TOKENS)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0", pair=f"{cls}:0 $A:0 {sep}:0 $B:0 {sep}:0",
        special_tokens=[(token, backend.token_to_id(token)) for token in (cls, sep)],
    )  # fmt: skip
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token=cls, sep_token=sep,
        mask_token="[MASK]", model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


def make_gemma():
    """A BPE with bytes for unknown letters, with "▁" for a space, as that of mmBERT."""
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    backend = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=[*special, *(f"<0x{byte:02X}>" for byte in range(256))]
    )
    backend.train_from_iterator([*WORDS, *(f" {word}" for word in WORDS)] * 3, trainer)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    backend.post_processor = processors.TemplateProcessing(
        single="<bos>:0 $A:0 <eos>:0", pair="<bos>:0 $A:0 <eos>:0 $B:0 <eos>:0",
        special_tokens=[(token, backend.token_to_id(token)) for token in ("<bos>", "<eos>")],
    )  # fmt: skip
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>", cls_token="<bos>", sep_token="<eos>",
        mask_token="<mask>", model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


ALBERT = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
TOKENIZERS = {
    "WordPiece": lambda: make_wordpiece("BertTokenizer"),
    "WordPiece of MPNet": lambda: make_wordpiece(
        "MPNetTokenizer", ["<pad>", "[UNK]", "<s>", "</s>", "<mask>"]
    ),
    "WordPiece of Funnel": lambda: make_wordpiece(
        "FunnelTokenizer", ["<pad>", "<unk>", "<cls>", "<sep>", "<mask>", "<s>", "</s>"]
    ),
    "BPE": lambda: make_bpe("RobertaTokenizer", ROBERTA),
    "BPE with prefix space": lambda: make_bpe("RobertaTokenizer", ROBERTA, add_prefix_space=True),
    "BPE of DeBERTa": lambda: make_bpe("DebertaTokenizer", SPECIAL_TOKENS),
    "BPE of ModernBERT": make_modernbert,
    "BPE of Gemma": make_gemma,
    "unigram of XLM-R": lambda: make_unigram("XLMRobertaTokenizer", ROBERTA),
    "unigram of CamemBERT": lambda: make_unigram("CamembertTokenizer", ROBERTA),
    "unigram of DeBERTa": lambda: make_unigram(
        "DebertaV2Tokenizer", ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"], unk_id=3
    ),
    "unigram of ALBERT": lambda: make_unigram("AlbertTokenizer", ALBERT),
    "unigram of BigBird": lambda: make_unigram(
        "BigBirdTokenizer", ["<pad>", "</s>", "<s>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    ),
    "unigram of RemBERT": lambda: make_unigram("RemBertTokenizer", ALBERT),
    "unigram of XLNet": lambda: make_unigram(
        "XLNetTokenizer", ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>"]
    ),
}  # fmt: skip


@functools.cache
def make_tokenizer_of(kind):
    """The tokenizer of a kind."""
    tokenizer = TOKENIZERS[kind]()
    tokenizer.model_max_length = 64
    return tokenizer


SIZE = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout": 0.0,
    "classifier_dropout_prob": 0.0,
}  # fmt: skip
LLAMA = {"num_key_value_heads": 2, "head_dim": 16, "attention_dropout": 0.0}
XLM = {
    "emb_dim": 32, "n_layers": 2, "n_heads": 2, "dropout": 0.0, "attention_dropout": 0.0,
    "summary_first_dropout": 0.0,
}  # fmt: skip
MODERNBERT = {
    "local_attention": 8, "attention_dropout": 0.0, "embedding_dropout": 0.0, "mlp_dropout": 0.0,
}  # fmt: skip
# By type, possibly followed by a family of models: the kind of tokenizer, and what differs from SIZE in the
# config. None removes a key.
MODEL_TYPES = {
    "albert": ("unigram of ALBERT", {"embedding_size": 16}),
    "bert": ("WordPiece", {}),
    "big_bird": ("unigram of BigBird", {"attention_type": "block_sparse", "block_size": 4,
                                        "num_random_blocks": 1}),
    "camembert": ("unigram of CamemBERT", {}),
    "convbert": ("WordPiece", {"embedding_size": 16, "head_ratio": 1, "conv_kernel_size": 3}),
    "data2vec-text": ("BPE", {}),
    "deberta": ("BPE of DeBERTa", {"relative_attention": True, "pos_att_type": "c2p|p2c"}),
    "deberta-v2": ("unigram of DeBERTa", {"relative_attention": True, "pos_att_type": "c2p|p2c",
                                          "position_biased_input": False}),
    "distilbert": ("WordPiece", {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "dropout": 0.0,
                                 "attention_dropout": 0.0, "seq_classif_dropout": 0.0, "qa_dropout": 0.0}),
    "electra": ("WordPiece", {"embedding_size": 16}),
    "ernie": ("WordPiece", {}),
    "eurobert": ("BPE of ModernBERT", LLAMA),
    "flaubert": ("WordPiece", XLM),
    "fnet": ("unigram of ALBERT", {}),
    "funnel": ("WordPiece of Funnel", {"d_model": 32, "n_head": 2, "d_head": 16, "d_inner": 64,
                                       "block_sizes": [1, 1], "num_hidden_layers": None,
                                       "hidden_dropout": 0.0,
                                       "attention_dropout": 0.0, "activation_dropout": 0.0}),
    "gte": ("unigram of XLM-R", {}),
    "ibert": ("BPE", {}),
    "jina_embeddings_v3": ("unigram of XLM-R", {}),
    "longformer": ("BPE", {"attention_window": 8}),
    "luke": ("BPE", {"entity_vocab_size": 10, "entity_emb_size": 8}),
    "megatron-bert": ("WordPiece", {}),
    "mobilebert": ("WordPiece", {"embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16,
                                 "num_feedforward_networks": 1}),
    "modernbert": ("BPE of ModernBERT", MODERNBERT),
    "modernbert of mmBERT": ("BPE of Gemma", MODERNBERT),
    "mpnet": ("WordPiece of MPNet", {}),
    "mra": ("BPE", {"max_position_embeddings": 64}),
    "nomic_bert": ("WordPiece", {"head_dim": 16}),
    "nystromformer": ("unigram of ALBERT", {"num_landmarks": 8, "segment_means_seq_len": 8}),
    "reformer": ("BPE", {"attention_head_size": 16, "attn_layers": ["local", "lsh"], "feed_forward_size": 64,
                         "axial_pos_embds": False, "local_attn_chunk_length": 8, "lsh_attn_chunk_length": 8,
                         "local_attention_probs_dropout_prob": 0.0, "num_buckets": 4}),
    "rembert": ("unigram of RemBERT", {"input_embedding_size": 16, "output_embedding_size": 24}),
    "roberta": ("BPE", {}),
    "roberta-prelayernorm": ("BPE with prefix space", {}),
    "roc_bert": ("WordPiece", {"pronunciation_vocab_size": 40, "pronunciation_embed_dim": 8,
                               "shape_vocab_size": 40, "shape_embed_dim": 8}),
    "roformer": ("WordPiece", {"embedding_size": 16}),
    "squeezebert": ("WordPiece", {"embedding_size": 32, "q_groups": 2, "k_groups": 2, "v_groups": 2,
                                  "intermediate_groups": 2, "output_groups": 2}),
    "ultrabert": ("BPE of ModernBERT", LLAMA | {"sliding_window": 8, "prediction_head_size": 32,
                                                "layer_types": ["sliding_attention", "full_attention"]}),
    "xlm": ("WordPiece", XLM),
    "xlm-roberta": ("unigram of XLM-R", {}),
    "xlm-roberta-xl": ("unigram of XLM-R", {}),
    "xlnet": ("unigram of XLNet", {"d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 64, "dropout": 0.0,
                                     "max_position_embeddings": None}),
    "xmod": ("unigram of XLM-R", {"languages": ["en_XX"], "default_language": "en_XX"}),
    "yoso": ("unigram of ALBERT", {"use_expectation": True}),
}  # fmt: skip


def list_known_types():
    """The types that the installed version of transformers has."""
    from transformers import CONFIG_MAPPING

    return [name for name in MODEL_TYPES if get_type(name) in CONFIG_MAPPING]


def get_type(name):
    """The `model_type` of an entry of MODEL_TYPES."""
    return name.partition(" ")[0]


def save_model_of(name, folder, kind=None, **changes):
    """Save a tiny random model of a type, with a tokenizer; return the folder."""
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    usual_kind, settings = MODEL_TYPES[name]
    tokenizer = make_tokenizer_of(kind or usual_kind)
    special = {
        f"{role}_token_id": getattr(tokenizer, f"{source}_token_id")
        for role, source in (("pad", "pad"), ("bos", "cls"), ("eos", "sep"), ("cls", "cls"), ("sep", "sep"),
                             ("mask", "mask"))
    }  # fmt: skip
    positions = {"max_position_embeddings": 64 + special["pad_token_id"] + 1}  # as in RoBERTa
    settings = SIZE | positions | special | {"vocab_size": len(tokenizer)} | settings | changes
    config = AutoConfig.for_model(
        get_type(name), **{key: value for key, value in settings.items() if value is not None}
    )
    has_mlm = get_type(name) in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    torch.manual_seed(0)
    (AutoModelForMaskedLM if has_mlm else AutoModel).from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_character_rows(count, names, words, joiner):
    """Rows of NER whose words are characters, with `joiner` between the words of a sentence."""
    rng, rows = random.Random(0), {}
    while len(rows) < count:
        tokens, tags = [], []
        for number in range(rng.randint(2, 5)):
            is_name = rng.random() < 0.5
            word = rng.choice(names if is_name else words)
            if joiner and number:
                tokens.append(joiner)
                tags.append("O")
            tokens += word
            tags += [f"{'I' if place else 'B'}-X" if is_name else "O" for place in range(len(word))]
        rows["".join(tokens)] = {"tokens": tokens, "tags": tags}
    return list(rows.values())
