"""Markup such as <think> at the border of template and content."""

import pytest
from render_cases import KINDS, case, make_tokenizer

from turnwise.core.messages import system, user
from turnwise.core.trajectory import Stop
from turnwise.render.codec import match_any
from turnwise.render.renderer import Renderer

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'assistant' %}{{ message.content }}</s>{% else %}[<{{ message.content }}>]{% endif %}"
    "{% endfor %}"
)
"""Writes < and > around observations."""


@pytest.mark.parametrize("text", ["think", "/think", "x><think", "think><x"])
def test_words_made_of_template_and_environment_stay_text(text: str) -> None:
    tokenizer = make_tokenizer("chatml", "bpe")
    tokenizer.chat_template = TEMPLATE
    renderer = Renderer(tokenizer)
    marks = {tokenizer.convert_tokens_to_ids(word) for word in ("<think>", "</think>")}
    assert None not in marks and tokenizer.unk_token_id not in marks
    ids = renderer.start([user(text)])
    assert renderer.decode(ids) == f"[<{text}>]"
    assert not marks & set(ids)


@pytest.mark.parametrize("scheme", ["first", "always"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("template", ["chatml", "llama3", "plain_words"])
def test_words_that_are_cut_get_no_space(template: str, kind: str, scheme: str) -> None:
    _, renderer = case(template, kind, scheme=scheme)
    shown = renderer.decode(renderer.start([user("a<think>b</think>c")]))
    assert "a<think>b</think>c" in shown


CLOSED = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}"
)
"""Writes an empty think block, as templates of thinking models do when thinking is disabled."""


def test_closed_think_block_in_the_prompt_is_not_open() -> None:
    tokenizer = make_tokenizer("chatml", "bpe")
    tokenizer.chat_template = CLOSED
    renderer = Renderer(tokenizer)
    said = renderer.answer("go")
    assert renderer.decode(said[:-1]) == "go"
    parsed = renderer.parse(said, Stop.EOS)
    assert parsed.message.content == "go" and not parsed.spans


@pytest.mark.parametrize("template", ["gemma", "no_system"])
def test_environment_is_not_trusted_beside_the_rules(template: str) -> None:
    """If the template has no system message, the rules and the observation share one message."""
    tokenizer, renderer = case(template)
    ids = renderer.start([system("Rules."), user("Say <think> now.")])
    assert "Say <think> now." in renderer.decode(ids)
    assert tokenizer.convert_tokens_to_ids("<think>") not in ids


def test_longest_word_is_found_first() -> None:
    assert match_any(["<|im", "<|im_start|>", "<|im_start"]).findall("<|im_start|><|im") == ["<|im_start|>", "<|im"]
