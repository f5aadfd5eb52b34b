"""Tokenizers and chat templates for the tests of render/, without downloads."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from turnwise.core.messages import Message
from turnwise.render.renderer import Renderer

TEMPLATES = Path(__file__).parent.parent / "data" / "templates"
TURN_TOKENS = (
    *("<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("<start_of_turn>", "<end_of_turn>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>"),
)
SPECIALS = ("<unk>", "<s>", "</s>", *TURN_TOKENS)
ORDINARY = ("<think>", "</think>", "<tool_response>")
"""Added tokens that are not special: content may become these."""

WORDS = (
    *("system", "user", "assistant", "model", "tool", "Today", "is", "You", "are", "a", "careful", "player", "hello"),
    *("world", "Left", "Right", "Up", "Down", "the", "answer", "think", "INST", "go", "on", "what", "now", "north"),
)


@dataclass(frozen=True)
class Family:
    """A template, and how messages that it refuses are presented."""

    name: str
    folds: tuple[str, ...] = ()
    """Roles that become user messages."""
    merges: bool = False
    """Consecutive user messages become one."""
    trims_actions: bool = False
    """The template trims earlier actions."""


FAMILIES = (
    Family("chatml"),
    Family("llama3", trims_actions=True),
    Family("mistral", folds=("tool",), merges=True),
    Family("gemma", folds=("system", "tool"), merges=True, trims_actions=True),
    Family("think_stripping"),
    Family("no_system", folds=("system", "tool")),
    Family("alternating", folds=("tool",), merges=True),
    Family("trimming"),
    Family("generation_tags"),
    Family("forced_think"),
    Family("plain_words"),
)
KINDS = ("bpe", "unigram")


def template_text(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text()


@cache
def _bpe(scheme: str) -> str:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=scheme == "always")
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([" ".join(WORDS), "\n\n\n\n  \n\n", "[INST] x [/INST]", "<| <| >> >>"] * 3, trainer)
    return backend.to_str()


@cache
def _unigram(scheme: str) -> str:
    """Byte fallback and " word" pieces; special tokens are also ordinary pieces, as in SentencePiece."""
    pieces = [(token, 0.0) for token in SPECIALS]
    pieces += [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    pieces += [("▁", -4.0), ("\n", -4.0), ("\n\n", -5.0), *((chr(code), -9.0) for code in range(33, 127))]
    pieces += [(f"▁{word}", -6.0) for word in WORDS] + [(word, -7.0) for word in WORDS if len(word) > 1]
    backend = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    if scheme == "prepend":  # as the first Llama tokenizers did it
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend.to_str()


def make_tokenizer(
    template: str | None, kind: str = "bpe", special: tuple[str | AddedToken, ...] = SPECIALS, scheme: str = "first"
) -> PreTrainedTokenizerFast:
    """A new tokenizer with a template of tests/data/templates. `scheme`: where it inserts a space."""
    backend = Tokenizer.from_str(_bpe(scheme) if kind == "bpe" else _unigram(scheme))
    backend.add_special_tokens(list(special))
    backend.add_tokens(list(ORDINARY))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = None if template is None else template_text(template)
    return tokenizer


@cache
def case(template: str, kind: str = "bpe", scheme: str = "first") -> tuple[PreTrainedTokenizerFast, Renderer]:
    tokenizer = make_tokenizer(template, kind, scheme=scheme)
    return tokenizer, Renderer(tokenizer)


def decode(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False)


def special_ids(tokenizer: PreTrainedTokenizerFast) -> set[int]:
    return {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}


def spell(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Ids of `text` byte by byte, which the tokenizer would not choose, so that re-encoding would be noticed."""
    vocabulary = tokenizer.get_vocab()
    if "<0x00>" in vocabulary:
        return [vocabulary[f"<0x{byte:02X}>"] for byte in text.encode()]
    letters = {token: token_id for token, token_id in vocabulary.items() if len(token) == 1}
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return [letters[letter] for piece, _ in byte_level.pre_tokenize_str(text) for letter in piece]


def own_text(tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, str]], prompt: bool = True) -> str:
    """The text that the template itself writes."""
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)


def presented(family: Family, messages: list[Message]) -> list[dict[str, str]]:
    """The messages as presented to a template that refuses roles or repetitions."""
    made: list[dict[str, str]] = []
    after_system = False
    for message in messages:
        role = "user" if message.role in family.folds else message.role
        joins, after_system = family.merges or after_system, message.role == "system"
        if joins and role == "user" and made and made[-1]["role"] == "user":
            made[-1]["content"] = "\n\n".join(text for text in (made[-1]["content"], message.content) if text)
        else:
            made.append({"role": role, "content": message.content})
    return made
