"""Tiny: a Llama of 0.7 million parameters with its own tokenizer and chat template.

Token ids, in order:

    0 .. 255    the bytes, so that any text can be represented
    256 ..      the pieces of data/tiny_tokens.txt
    the last    the special tokens; plain text never becomes one of them

tiny_vlm is tiny with a patch encoder. Environments that draw one cell as PIXELS x PIXELS pixels (`cell_pixels`) give it
one token per cell.
"""

import json
from functools import cache

import torch
from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import Unigram
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)

from turnwise.files.package_data import read_data
from turnwise.models.loading.catalogue import PIXELS_PER_TOKEN, TINY_VLM
from turnwise.models.vision.patch_encoder import IMAGE, equip_patch_encoder, match_embeddings, patch_encoder_config

TINY_VERSION = 4
"""Part of every cache key of a tiny model. Increase it when tokens, template or architecture change."""

PAD, END = "<|pad|>", "<|end|>"
SPECIAL_TOKENS = (PAD, "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", END)

PIECE_SCORE = -1.0
"""Equal for all pieces, so that the best segmentation has the fewest pieces."""
BYTE_SCORE = -1000.0
"""Low enough that the text "<0x41>" becomes its six characters and not the byte token of that name."""


@cache
def tiny_pieces() -> tuple[str, ...]:
    """Return the pieces for all built-in environments in the order of their ids."""
    lines = read_data("turnwise.models", "data/tiny_tokens.txt").splitlines()
    return tuple(json.loads(line) for line in lines if not line.startswith("#"))


def tiny_tokenizer(*more: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer that splits text into the fewest pieces, falls back to bytes, and decodes exactly.

    `more`: further special tokens, after the others.

    No normalizer or pre-tokenizer can lose information. Unigram requires an unknown token; byte 0 serves as one, and is
    never used as such because all 256 bytes are in the vocabulary.
    """
    byte_pieces = [(f"<0x{byte:02X}>", BYTE_SCORE) for byte in range(256)]
    vocabulary = byte_pieces + [(piece, PIECE_SCORE) for piece in tiny_pieces()]
    tokenizer = Tokenizer(Unigram(vocabulary, unk_id=0, byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    special = (*SPECIAL_TOKENS, *more)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[token for token in special if token not in (PAD, END)],
        clean_up_tokenization_spaces=False,
        chat_template=read_data("turnwise.models", "data/tiny_chat.jinja"),
    )


def tiny_config() -> LlamaConfig:
    first_special = 256 + len(tiny_pieces())
    return LlamaConfig(
        vocab_size=first_special + len(SPECIAL_TOKENS),
        hidden_size=128,
        num_hidden_layers=2,  # shallow and wide learns small environments in half the time of narrow and deep
        num_attention_heads=8,  # with four, FrozenLake takes 1.5 times as many steps
        num_key_value_heads=4,
        head_dim=16,
        intermediate_size=512,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},  # short contexts: sharp at small distances
        initializer_range=0.08,  # about 1/sqrt(hidden); the usual 0.02 doubles the training time
        tie_word_embeddings=True,
        pad_token_id=first_special + SPECIAL_TOKENS.index(PAD),
        eos_token_id=first_special + SPECIAL_TOKENS.index(END),
        bos_token_id=None,
    )


def tiny_model(seed: int = 0) -> LlamaForCausalLM:
    """Return untrained float32 weights on the CPU that depend on the seed only. Keeps the global random state."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return LlamaForCausalLM(tiny_config()).eval()


PIXELS = PIXELS_PER_TOKEN[TINY_VLM]
"""Height and width that one token of an image shows."""


def tiny_vlm_tokenizer() -> PreTrainedTokenizerFast:
    """Return tiny's tokenizer with a token for images."""
    return tiny_tokenizer(IMAGE)


def tiny_vlm_config() -> Qwen2VLConfig:
    return patch_encoder_config(tiny_config(), pixels=PIXELS, embed_dim=64)


def tiny_vlm_model(seed: int = 0) -> Qwen2VLForConditionalGeneration:
    """Return untrained float32 weights on the CPU that depend on the seed only. Keeps the global random state."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = Qwen2VLForConditionalGeneration(tiny_vlm_config()).eval()
        match_embeddings(model)
    equip_patch_encoder(model, tiny_vlm_tokenizer())
    return model
