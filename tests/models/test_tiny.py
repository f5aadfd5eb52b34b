import asyncio
import hashlib
import itertools
import json
import random
import re
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from turnwise.envs.bandit.env import NAMES, Bandit
from turnwise.envs.frozen_lake.env import SYMBOLS as LAKE_SYMBOLS
from turnwise.envs.frozen_lake.env import FrozenLake
from turnwise.envs.runner import TextEnvRunner
from turnwise.envs.sokoban.env import SYMBOLS as SOKOBAN_SYMBOLS
from turnwise.envs.sokoban.env import Sokoban
from turnwise.models.loading.tiny import (
    SPECIAL_TOKENS,
    TINY_VERSION,
    tiny_config,
    tiny_model,
    tiny_pieces,
    tiny_tokenizer,
)

TOKENIZER = tiny_tokenizer()
PINNED = dict.fromkeys((1, 2, 3, 4), "3cd151675aa1e5177698a9e7385f042116e8ca8d12ab639474dee548834bc624")


def encode(text: str) -> list[int]:
    """Encode as content, without special tokens."""
    return TOKENIZER.encode(text, add_special_tokens=False, split_special_tokens=True)


def pieces_of(text: str) -> list[str]:
    return [TOKENIZER.decode([token]) for token in encode(text)]


def render(messages: list[dict[str, Any]], **options: Any) -> str:
    return TOKENIZER.apply_chat_template(messages, tokenize=False, **options)


def test_token_list_is_pinned_to_its_version() -> None:
    found = hashlib.sha256(json.dumps(tiny_pieces()).encode()).hexdigest()
    assert found == PINNED[TINY_VERSION], (
        "changing this list breaks saved tiny models: increase TINY_VERSION and pin the hash"
    )


def test_pieces_are_unique_and_not_empty() -> None:
    assert len(set(tiny_pieces())) == len(tiny_pieces())
    assert all(tiny_pieces())


def test_ids_are_bytes_then_pieces_then_special_tokens() -> None:
    names = [f"<0x{byte:02X}>" for byte in range(256)] + list(tiny_pieces()) + list(SPECIAL_TOKENS)
    assert TOKENIZER.convert_ids_to_tokens(list(range(len(TOKENIZER)))) == names


@given(st.text())
@example("👨‍👩‍👧 日本語 é e\u0301 \ufeff\u2028\U0010ffff")
@example("  two  spaces \r\n\t\x00\x1f\x7f ")
@example("▁a ▁ ▁▁")
@example("<0x41><0xE2> <unk> </s>")
@example("".join(SPECIAL_TOKENS))
def test_tokenizer_round_trips_any_text(text: str) -> None:
    assert TOKENIZER.decode(encode(text)) == text


@given(st.lists(st.sampled_from(["<0x41>", "<0x", "<|end|>", "<|", "<think>", " ", "P", " P", "√", "é", "\n"])))
def test_special_tokens_in_text_stay_text(parts: list[str]) -> None:
    ids = encode("".join(parts))
    assert TOKENIZER.decode(ids) == "".join(parts)
    assert max(ids, default=0) < len(TOKENIZER) - len(SPECIAL_TOKENS)


@given(st.text(alphabet=st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=30))
def test_tokenizer_uses_the_fewest_pieces(text: str) -> None:
    fewest = [0] + [len(text) + 1] * len(text)
    known = set(tiny_pieces())
    for end in range(1, len(text) + 1):
        fewest[end] = min(fewest[start] + 1 for start in range(end) if text[start:end] in known)
    assert len(encode(text)) == fewest[-1]


NUMBERS = [str(number) for number in range(101)] + ["128", "256", "512", "1024", "2048"]
CUBE = [face + turn for face in "UDLRFB" for turn in ("", "'", "2")]
ACTIONS = ["Up", "Down", "Left", "Right", "yes", "no", "maybe", *CUBE]
GRID = [*"#_O√XPSGW.CBA*@$+-|0123456789WYROBG", *LAKE_SYMBOLS.values(), *SOKOBAN_SYMBOLS["other"].values()]
TAGS = [f"<{slash}{name}>" for name in ("think", "answer", "tool_call") for slash in ("", "/")]
BARE_ONLY = [*TAGS, "search[", "click[", "finish[", "place", "SELECT"]
ARMS = [name for pairs in NAMES.values() for pair in pairs for name in pair]


@pytest.mark.parametrize("words", [NUMBERS, ACTIONS, GRID, ARMS], ids=["numbers", "actions", "grid", "arms"])
def test_symbols_numbers_and_actions_are_single_tokens(words: list[str]) -> None:
    texts = words + [f" {word}" for word in words]
    assert [text for text in texts if pieces_of(text) != [text]] == []


def test_format_and_characters_are_single_tokens() -> None:
    texts = [*BARE_ONLY, " || ", "\n", "\t", "\r", *map(chr, range(32, 127)), " at", " row", " col"]
    assert [text for text in texts if pieces_of(text) != [text]] == []


@pytest.mark.parametrize(
    "symbols", [LAKE_SYMBOLS, *SOKOBAN_SYMBOLS.values(), dict(zip("123456", "WYROBG", strict=True))]
)
def test_every_grid_cell_is_one_token(symbols: dict[str, str]) -> None:
    rng = random.Random(0)
    for space in ("", " "):
        cells = rng.choices(list(symbols.values()), k=500)
        assert len(encode(space.join(cells))) == len(cells)


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        (Bandit, {}),
        (Bandit, {"names": "test", "reversed": True}),
        (FrozenLake, {}),
        (FrozenLake, {"slippery": True, "size": 8}),
        (Sokoban, {}),
        (Sokoban, {"symbols": "other", "boxes": 2, "size": 8}),
        (Sokoban, {"observation": "coordinates"}),
    ],
)
def test_every_word_of_built_in_prompts_is_one_token(kind: Any, params: dict[str, Any]) -> None:
    observation = asyncio.run(TextEnvRunner(kind(params), random.Random(0)).start())
    for message in observation.messages:
        pieces = pieces_of(message.content)
        inside_words = [a + b for a, b in itertools.pairwise(pieces) if re.fullmatch(r"\w\w", a[-1] + b[0])]
        assert inside_words == []


def test_answer_of_two_actions_is_five_tokens() -> None:
    reply = "<answer>Up || Left</answer>"
    assert pieces_of(reply) == ["<answer>", "Up", " || ", "Left", "</answer>"]


def test_template_writes_role_content_end_untrimmed() -> None:
    messages = [
        {"role": "system", "content": " rules \n"},
        {"role": "user", "content": "\n  grid"},
        {"role": "assistant", "content": "<think> x </think>\n<answer>Up</answer> "},
        {"role": "tool", "content": "result"},
        {"role": "user", "content": ""},
    ]
    expected = (
        "<|system|> rules \n<|end|><|user|>\n  grid<|end|>"
        "<|assistant|><think> x </think>\n<answer>Up</answer> <|end|><|tool|>result<|end|><|user|><|end|>"
    )
    assert render(messages) == expected
    assert render(messages, add_generation_prompt=True) == expected + "<|assistant|>"


def test_template_adds_two_tokens_per_message() -> None:
    ids = TOKENIZER.apply_chat_template(
        [{"role": "user", "content": "Up"}], add_generation_prompt=True, return_dict=False
    )
    assert TOKENIZER.convert_ids_to_tokens(ids) == ["<|user|>", "Up", "<|end|>", "<|assistant|>"]


def test_template_ignores_tools_and_writes_calls() -> None:
    """The environment describes its tools; the template does not know its call format."""
    tool = {"name": "look", "description": "<é>", "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": tool}]
    call = {"type": "function", "function": {"name": "look", "arguments": {"at": 1}}}
    said = [{"role": "system", "content": "be"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    written = '<tool_call>{"name": "look", "arguments": {"at": 1}}</tool_call>'
    assert render(said, tools=tools) == render(said) == f"<|system|>be<|end|><|assistant|>{written}<|end|>"


def test_template_writes_text_arguments_verbatim() -> None:
    call = {"function": {"name": "look", "arguments": '{"at":1}'}}
    text = render([{"role": "assistant", "content": "I look. ", "tool_calls": [call]}])
    assert text == '<|assistant|>I look. <tool_call>{"name": "look", "arguments": {"at":1}}</tool_call><|end|>'


def test_template_rejects_unknown_roles() -> None:
    with pytest.raises(Exception, match="unknown role: robot"):
        render([{"role": "robot", "content": "x"}])


def test_tiny_model_matches_the_tokenizer_and_is_small() -> None:
    model = tiny_model(0)
    assert 600_000 < sum(parameter.numel() for parameter in model.parameters()) < 1_000_000
    assert model.config.vocab_size == len(TOKENIZER) <= 1600
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert (model.config.eos_token_id, model.config.pad_token_id) == (TOKENIZER.eos_token_id, TOKENIZER.pad_token_id)
    assert model.generation_config.eos_token_id == TOKENIZER.convert_tokens_to_ids("<|end|>")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert tiny_config().max_position_embeddings == 4096


def test_tiny_model_weights_depend_on_the_seed_only() -> None:
    first = tiny_model(7).state_dict()
    torch.rand(3)
    again, other = tiny_model(7).state_dict(), tiny_model(8).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_tiny_model_keeps_the_global_random_state() -> None:
    before = torch.random.get_rng_state()
    tiny_model(3)
    assert torch.equal(torch.random.get_rng_state(), before)
