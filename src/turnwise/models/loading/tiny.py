"""Tiny: a Llama of 0.7 million parameters with a tokenizer and a chat template of its own.

The tokenizer's ids, in order:

    0 .. 255    the bytes, so that any text is representable
    256 ..      the pieces of data/tiny_tokens.txt
    the last    the special tokens; plain text never becomes one of them
"""

import json
from functools import cache
from importlib import resources

import torch
from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import Unigram
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TINY_VERSION = 4
"""Part of every cache key of a tiny model: bump it when tokens, template or architecture change."""

PAD, END = "<|pad|>", "<|end|>"
SPECIAL_TOKENS = (PAD, "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", END)

PIECE_SCORE = -1.0
"""Equal for all pieces, so that the best path through a text is the one with the fewest of them."""
BYTE_SCORE = -1000.0
"""So low that the text "<0x41>" is read as its six characters and not as the byte's name."""


@cache
def tiny_pieces() -> tuple[str, ...]:
    """The single tokens for all built-in environments, in the order of their ids."""
    lines = _data("tiny_tokens.txt").splitlines()
    return tuple(json.loads(line) for line in lines if not line.startswith("#"))


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Cuts any text into the fewest pieces, bytes where no piece fits, and decodes to exactly that text.

    There is no normaliser and no pre-tokeniser that could lose something. Byte 0 serves as the unknown token that
    the algorithm insists on; with all 256 bytes at hand it never stands for anything unknown.
    """
    byte_pieces = [(f"<0x{byte:02X}>", BYTE_SCORE) for byte in range(256)]
    vocabulary = byte_pieces + [(piece, PIECE_SCORE) for piece in tiny_pieces()]
    tokenizer = Tokenizer(Unigram(vocabulary, unk_id=0, byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[token for token in SPECIAL_TOKENS if token not in (PAD, END)],
        clean_up_tokenization_spaces=False,
        chat_template=_data("tiny_chat.jinja"),
    )


def tiny_config() -> LlamaConfig:
    first_special = 256 + len(tiny_pieces())
    return LlamaConfig(
        vocab_size=first_special + len(SPECIAL_TOKENS),
        hidden_size=128,
        num_hidden_layers=2,  # shallow and wide learns small worlds in half the time of narrow and deep
        num_attention_heads=8,  # with four, FrozenLake takes half as many steps again
        num_key_value_heads=4,
        head_dim=16,
        intermediate_size=512,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},  # boards are short: sharp at small distances
        initializer_range=0.08,  # about 1/sqrt(hidden): the usual 0.02 takes so small a model twice as long
        tie_word_embeddings=True,
        pad_token_id=first_special + SPECIAL_TOKENS.index(PAD),
        eos_token_id=first_special + SPECIAL_TOKENS.index(END),
        bos_token_id=None,
    )


def tiny_model(seed: int = 0) -> LlamaForCausalLM:
    """Untrained weights, float32 on the CPU, a function of the seed alone; the global random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return LlamaForCausalLM(tiny_config()).eval()


def _data(name: str) -> str:
    return (resources.files("turnwise.models") / "data" / name).read_text(encoding="utf-8")
