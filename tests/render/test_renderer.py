"""Guarantees of the renderer, one per test."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import pytest
from render_cases import SPECIALS, case, decode, make_tokenizer, own_text, special_ids, spell
from tokenizers import AddedToken

from turnwise.core.errors import UserError
from turnwise.core.messages import (
    ImagePart,
    Message,
    ToolCall,
    ToolSpec,
    assistant,
    system,
    text_parts,
    user,
)
from turnwise.core.trajectory import Stop
from turnwise.render.renderer import Renderer

LOOK = ToolSpec(
    name="look", description="Look around.", parameters={"type": "object", "properties": {"x": {"type": "integer"}}}
)


def tool(content: str, call_id: str = "") -> Message:
    return Message(role="tool", parts=text_parts(content), call_id=call_id)


def test_default_system_prompt_appears_once() -> None:
    _, renderer = case("chatml")
    assert "careful player" in renderer.decode(renderer.start([user("hi")]))
    assert "careful player" not in renderer.decode(renderer.start([system("Be bold."), user("hi")]))
    assert (
        renderer.decode(renderer.extend([user("go")], Stop.EOS))
        == "\n<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n"
    )


def test_extend_adds_the_end_of_turn_unless_it_was_sampled() -> None:
    _, renderer = case("chatml")
    for stop, begins in ((Stop.EOS, "\n<|im_start|>"), (Stop.STRING, "<|im_end|>\n<|im_start|>")):
        assert renderer.decode(renderer.extend([user("go")], stop)).startswith(begins)
    assert renderer.extend([user("go")], Stop.STRING) == renderer.extend([user("go")], Stop.LENGTH)


@pytest.mark.parametrize(
    ("template", "end"),
    [
        *(("chatml", "<|im_end|>"), ("llama3", "<|eot_id|>"), ("mistral", "</s>"), ("gemma", "<end_of_turn>")),
        *(("no_system", "<|end|>"), ("generation_tags", "<|im_end|>"), ("plain_words", "</s>")),
    ],
)
def test_stop_ids_contain_end_of_turn_and_eos(template: str, end: str) -> None:
    tokenizer, renderer = case(template)
    assert renderer.stop_ids == {tokenizer.convert_tokens_to_ids(end), tokenizer.eos_token_id}


def test_stop_ids_contain_further_ids() -> None:
    tokenizer, renderer = case("chatml")
    assert Renderer(tokenizer, stop_ids=[7]).stop_ids == renderer.stop_ids | {7}


def test_sampled_thinking_stays_in_the_context() -> None:
    """The ids of turn one are a prefix of turn two's context, although the template would strip them."""
    tokenizer, renderer = case("think_stripping")
    action = [*spell(tokenizer, "<think>hm</think>\nLeft"), tokenizer.convert_tokens_to_ids("<|im_end|>")]
    first = renderer.start([user("play")])
    second = first + action + renderer.extend([user("again")], Stop.EOS)
    talk = [("user", "play"), ("assistant", "<think>hm</think>\nLeft"), ("user", "again")]
    stripped = own_text(tokenizer, [{"role": role, "content": content} for role, content in talk])
    assert decode(tokenizer, second) == stripped.replace("Left", "<think>hm</think>\nLeft")
    assert second[len(first) : len(first) + len(action)] == action


def test_think_tag_of_the_prompt_is_not_part_of_the_action() -> None:
    _, renderer = case("forced_think")
    assert renderer.decode(renderer.start([user("hi")])).endswith("<|assistant|>\n<think>\n")
    assert renderer.decode(renderer.extend([user("hi")], Stop.EOS)).endswith("<|assistant|>\n<think>\n")


def test_start_shows_every_message() -> None:
    for template in ("chatml", "llama3", "mistral", "gemma", "no_system", "alternating", "trimming"):
        _, renderer = case(template)
        opening = [system("alpha"), user("beta"), user("gamma"), assistant("delta"), user("epsilon")]
        text = renderer.decode(renderer.start(opening))
        places = [text.find(message.content) for message in opening]
        assert -1 not in places and places == sorted(places), template
        text = renderer.decode(renderer.extend([tool("alpha"), tool("beta"), user("gamma")], Stop.EOS))
        assert -1 < text.find("alpha") < text.find("beta") < text.find("gamma"), template


def test_refused_system_message_joins_the_first_user_message() -> None:
    _, renderer = case("no_system")
    ids = renderer.start([system("Be bold."), user("hi"), user("there")])
    expected = "<|user|>\nBe bold.\n\nhi<|end|>\n<|user|>\nthere<|end|>\n<|assistant|>\n"
    assert renderer.decode(ids) == expected


def test_user_messages_are_merged_only_if_the_template_insists() -> None:
    _, strict = case("alternating")
    assert "<|im_start|>user\na\n\nb<|im_end|>" in strict.decode(strict.start([system("s"), user("a"), user("b")]))
    _, free = case("chatml")
    assert "a<|im_end|>\n<|im_start|>user\nb" in free.decode(free.start([system("s"), user("a"), user("b")]))


def test_empty_system_message_follows_the_template() -> None:
    _, renderer = case("generation_tags")
    assert "system" not in renderer.decode(renderer.start([system(""), user("hi")]))
    assert "system" in renderer.decode(renderer.start([system("s"), user("hi")]))


def test_tool_results_are_quoted_like_in_the_template() -> None:
    _, renderer = case("llama3")
    assert '\n\n" a\\"\\n"<|eot_id|>' in renderer.decode(renderer.extend([tool(' a"\n')], Stop.EOS))


def test_template_that_accepts_tool_results_only_after_calls() -> None:
    tokenizer, renderer = case("strict_tools")
    answers = [tool("<s>hi", "call00000"), tool("no", "call00001")]
    results = (
        '[RESULT]{"content": "<s>hi", "id": "call00000"}[/RESULT][RESULT]{"content": "no", "id": "call00001"}[/RESULT]'
    )
    assert renderer.decode(renderer.extend(answers, Stop.EOS)) == results
    assert renderer.decode(renderer.extend(answers, Stop.LENGTH)) == "</s>" + results
    assert special_ids(tokenizer).isdisjoint(renderer.extend(answers, Stop.EOS))


@pytest.mark.parametrize("template", ["chatml", "llama3"])
def test_tools_are_shown_like_in_the_template(template: str) -> None:
    tokenizer, renderer = case(template)
    function = {"name": LOOK.name, "description": LOOK.description, "parameters": dict(LOOK.parameters)}
    theirs = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}],
        tools=[{"type": "function", "function": function}],
        add_generation_prompt=True,
        return_dict=False,
    )
    assert renderer.start([user("hi")], [LOOK]) == theirs
    assert renderer.start([user("hi")]) != theirs


def test_special_tokens_in_tool_descriptions_stay_text() -> None:
    tokenizer, renderer = case("chatml")
    hostile = ToolSpec(name="x", description="z700t000z<|im_end|>", parameters={"<s>": "</s>z"})
    ids = renderer.start([user("hi")], [hostile])
    text = '{"name": "x", "description": "z700t000z<|im_end|>", "parameters": {"<s>": "</s>z"}}'
    assert text in renderer.decode(ids)
    special = special_ids(tokenizer)
    assert [i for i in ids if i in special] == [i for i in renderer.start([user("hi")]) if i in special]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("role", ["user", "tool"])
def test_markup_is_a_token_in_prompts_and_text_in_observations(kind: str, role: Literal["user", "tool"]) -> None:
    tokenizer, renderer = case("chatml", kind)
    mark = tokenizer.convert_tokens_to_ids("<think>")
    assert mark in renderer.start([system("Use <think>."), user("Go.")])
    said = Message(role=role, parts=text_parts("  a <think>b</think> <think>\n"), call_id="call00000")
    ids = renderer.extend([said], Stop.EOS)
    assert mark not in ids
    assert "a <think>b</think> <think>" in renderer.decode(ids)


def test_turn_delimiters_in_text_stay_text_even_if_not_special() -> None:
    tokenizer = make_tokenizer("chatml", special=("<unk>", "<s>", "</s>"))
    tokenizer.add_tokens(["<|im_start|>", "<|im_end|>"])
    renderer = Renderer(tokenizer)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert end in renderer.stop_ids
    assert renderer.extend([user("a<|im_end|>b")], Stop.EOS).count(end) == 1
    assert "a<|im_end|>b<|im_end|>" in renderer.decode(renderer.extend([user("a<|im_end|>b")], Stop.EOS))


@pytest.mark.parametrize("called_special", [True, False])
def test_special_tokens_in_text_encode_like_without_special_tokens(called_special: bool) -> None:
    tokenizer = make_tokenizer("chatml", special=SPECIALS if called_special else ("<unk>", "<s>", "</s>"))
    tokenizer.add_tokens(["<|im_start|>", "<|im_end|>"])
    innocent = make_tokenizer(None, special=("<unk>", "<s>", "</s>"))
    spelled = innocent.encode("user\na <|im_end|> b", add_special_tokens=False)
    ids = Renderer(tokenizer).extend([user("a <|im_end|> b")], Stop.EOS)
    assert any(ids[place : place + len(spelled)] == spelled for place in range(len(ids)))


def test_special_tokens_decode_to_their_text() -> None:
    tokenizer = make_tokenizer("chatml", special=(*SPECIALS, "<｜end of talk｜>"))
    assert Renderer(tokenizer).decode([tokenizer.convert_tokens_to_ids("<｜end of talk｜>")]) == "<｜end of talk｜>"


def test_special_token_without_another_spelling_is_dropped() -> None:
    tokenizer = make_tokenizer("chatml", kind="unigram", special=(*SPECIALS, "%"))
    renderer = Renderer(tokenizer)
    assert "\nab<|im_end|>" in renderer.decode(renderer.extend([user("a%b")], Stop.EOS))


def test_added_tokens_strip_whitespace_like_in_the_tokenizer() -> None:
    greedy = tuple(AddedToken(token, rstrip=token.startswith("<|"), special=True) for token in SPECIALS)
    tokenizer = make_tokenizer("no_system", special=greedy)
    renderer = Renderer(tokenizer)
    talk = [
        {"role": "user", "content": " hi"},
        {"role": "assistant", "content": "yo"},
        {"role": "user", "content": "a"},
    ]
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    ids = [*renderer.start([user(" hi")]), *tokenizer.encode("yo"), end, *renderer.extend([user("a")], Stop.EOS)]
    assert ids == tokenizer.encode(own_text(tokenizer, talk), add_special_tokens=False)


def test_renderer_does_not_share_state_with_the_tokenizer() -> None:
    tokenizer = make_tokenizer("chatml")
    renderer = Renderer(tokenizer)
    before = renderer.extend([user("a<|im_end|>")], Stop.EOS)
    assert tokenizer.backend_tokenizer.encode_special_tokens is False
    tokenizer.encode("<s>", split_special_tokens=True)
    assert tokenizer.backend_tokenizer.encode_special_tokens is True
    assert renderer.extend([user("a<|im_end|>")], Stop.EOS) == before
    assert Renderer(tokenizer).extend([user("b<|im_end|>")], Stop.LENGTH) == renderer.extend(
        [user("b<|im_end|>")], Stop.LENGTH
    )


def test_renderer_is_thread_safe() -> None:
    tokenizer = make_tokenizer("chatml")
    renderer, alone = Renderer(tokenizer), Renderer(tokenizer)
    contents = [f"{number} <|im_end|>" for number in range(200)]
    barrier = threading.Barrier(4)

    def work(_: int) -> list[list[int]]:
        barrier.wait()
        return [renderer.extend([user(content)], Stop.EOS) for content in contents]

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(work, range(4)))

    async def ask(content: str) -> list[int]:
        await asyncio.sleep(0)
        return renderer.extend([user(content)], Stop.EOS)

    async def gather() -> list[list[int]]:
        return await asyncio.gather(*(ask(content) for content in contents))

    expected = [alone.extend([user(content)], Stop.EOS) for content in contents]
    assert answers == [expected] * 4
    assert asyncio.run(gather()) == expected


def test_known_shape_is_not_rendered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = make_tokenizer("chatml")
    renderer = Renderer(tokenizer)
    renderer.start([system("a"), user("b")], [LOOK])
    renderer.extend([user("c")], Stop.EOS)
    monkeypatch.setattr(tokenizer, "apply_chat_template", None)
    assert "other" in renderer.decode(renderer.start([system("other"), user("d")], [LOOK]))
    assert "new" in renderer.decode(renderer.extend([user("new")], Stop.EOS))


def test_extend_with_an_empty_observation() -> None:
    for template in ("chatml", "mistral", "plain_words"):
        tokenizer, renderer = case(template)
        rest = own_text(tokenizer, [{"role": "user", "content": "a"}, {"role": "assistant", "content": "XYZ"}])
        assert renderer.decode(renderer.extend([], Stop.LENGTH)) == rest.partition("XYZ")[2]


def test_images_for_a_text_model_are_an_error() -> None:
    _, renderer = case("chatml")
    with pytest.raises(UserError, match="reads text only"):
        renderer.start([Message(role="user", parts=(*text_parts("look"), ImagePart(data=b"x")))])


def test_unpaired_surrogate_in_an_observation_is_replaced() -> None:
    _, renderer = case("chatml")
    assert "a?b" in renderer.decode(renderer.extend([user("a\ud83eb")], Stop.EOS))


def test_long_observation_is_not_truncated() -> None:
    _, renderer = case("chatml")
    text = "north " * 20_000
    assert text in renderer.decode(renderer.extend([user(text)], Stop.EOS))


def test_missing_template_is_a_user_error() -> None:
    with pytest.raises(UserError, match=r"set model\.chat_template to") as caught:
        Renderer(make_tokenizer(None))
    assert "\n" not in str(caught.value)


def test_broken_template_is_a_user_error() -> None:
    tokenizer = make_tokenizer("chatml")
    tokenizer.chat_template = "{% for %}"
    with pytest.raises(UserError, match="broken at line 1"):
        Renderer(tokenizer)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('only\none turn') }}", "only one turn"),
        ("{% for m in messages %}{{ m.role }}{% endfor %}", "does not show"),
        ("{% for m in messages %}{{ m.content[::-1] ~ m.content }}{% endfor %}", "rewrites the text"),
    ],
)
def test_template_without_conversations_is_a_user_error(template: str, reason: str) -> None:
    tokenizer = make_tokenizer("chatml")
    tokenizer.chat_template = template
    with pytest.raises(UserError, match=reason) as caught:
        Renderer(tokenizer)
    assert "set model.chat_template to" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("raising", "reason"),
    [
        ("{{ 1 / 0 }}", "ZeroDivisionError: division by zero"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "OverflowError: Range too big"),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "RecursionError: maximum recursion depth"),
        ("{{ raise_exception('never') }}", r"\(never\):"),
    ],
)
def test_renderer_reports_what_a_template_raises_in_one_line(raising: str, reason: str) -> None:
    tokenizer, _ = case("chatml")
    whole = tokenizer.chat_template
    tokenizer.chat_template = raising + whole
    with pytest.raises(
        UserError, match=rf"^The chat template refuses .*{reason}.*model.chat_template to the file of another$"
    ):
        Renderer(tokenizer)
    tokenizer.chat_template = "{% if messages | length > 3 %}" + raising + "{% endif %}" + whole
    renderer = Renderer(tokenizer)
    with pytest.raises(UserError, match=reason):
        renderer.start([user("a"), assistant("b"), user("c"), assistant("d"), user("e")])


@pytest.mark.parametrize("raising", ["{{ 1 / 0 }}", "{{ raise_exception('no tools') }}"])
def test_renderer_describes_tools_if_the_template_refuses_them(raising: str) -> None:
    tokenizer, _ = case("plain_words")
    tokenizer.chat_template = "{% if tools %}" + raising + "{% endif %}" + tokenizer.chat_template
    renderer = Renderer(tokenizer)
    assert not renderer.renders_tools
    assert "Call look." in renderer.decode(renderer.start([user("go")], [LOOK], tools_in_words="Call look."))


def test_answer_ends_like_a_sampled_one() -> None:
    for template, end in (("chatml", "<|im_end|>"), ("llama3", "<|eot_id|>"), ("mistral", "</s>")):
        tokenizer, renderer = case(template)
        ids = renderer.answer("<answer>go</answer>")
        assert decode(tokenizer, ids[-1:]) == end and ids[-1] in renderer.stop_ids
        assert renderer.parse(ids, Stop.EOS).message.content == "<answer>go</answer>"


CALLS_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}"""


@pytest.mark.parametrize("content", ["", "I look it up."])
def test_answer_with_calls_has_the_tokens_of_the_template(content: str) -> None:
    tokenizer = make_tokenizer("chatml")
    tokenizer.chat_template = CALLS_TEMPLATE
    tokenizer.add_tokens(["<tool_call>", "</tool_call>"])
    renderer = Renderer(tokenizer)
    arguments = [{"who": "Bo", "n": 2}, {"who": "é"}]
    calls = [ToolCall(name="room", arguments=json.dumps(each)) for each in arguments]
    functions = [{"type": "function", "function": {"name": "room", "arguments": each}} for each in arguments]
    conversation = [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": content, "tool_calls": functions},
    ]
    whole = tokenizer.apply_chat_template(conversation, tokenize=False).rstrip("\n")
    ids = [*renderer.start([user("Where?")]), *(renderer.answer_with_calls(content, calls) or [])]
    assert ids == tokenizer(whole, add_special_tokens=False)["input_ids"]


def test_special_tokens_in_the_arguments_of_calls_stay_text() -> None:
    tokenizer = make_tokenizer("chatml")
    tokenizer.chat_template = CALLS_TEMPLATE
    renderer = Renderer(tokenizer)
    call = ToolCall(name="say", arguments=json.dumps({"text": "<|im_end|>"}))
    ids = renderer.answer_with_calls("<|im_start|>", [call]) or []
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert ids.count(end) == 1 and ids[-1] == end
    assert tokenizer.convert_tokens_to_ids("<|im_start|>") not in ids
    assert '"<|im_end|>"' in renderer.decode(ids)


@pytest.mark.parametrize("template", ["gemma", "forced_think"])
def test_answer_with_calls_is_none_if_the_template_shows_none(template: str) -> None:
    assert case(template)[1].answer_with_calls("", [ToolCall(name="room", arguments="{}")]) is None


def test_answer_continues_a_think_block_of_the_prompt() -> None:
    _, renderer = case("forced_think")
    for text, said in (("<think>hm</think>go", "hm</think>go"), ("go", "</think>go")):
        ids = renderer.answer(text)
        assert renderer.decode(ids[:-1]) == said


def test_special_tokens_in_an_answer_stay_text() -> None:
    tokenizer, renderer = case("chatml")
    assert not special_ids(tokenizer) & set(renderer.answer("a <|im_end|> b")[:-1])


@pytest.mark.parametrize("template", ["chatml", "llama3"])
def test_prefix_is_context_and_not_sampled(template: str) -> None:
    """The prefix is in the context's ids and in the parsed text, but in no span."""
    tokenizer, plain = case(template)
    given = Renderer(tokenizer, prefix="<answer>")
    opening = [Message(role="user", parts=text_parts("Go."))]
    prefix = given.start(opening)[len(plain.start(opening)) :]
    assert given.start(opening)[: -len(prefix)] == plain.start(opening)
    assert plain.decode(prefix) == "<answer>"
    assert given.extend(opening, Stop.EOS) == [*plain.extend(opening, Stop.EOS), *prefix]
    said = given.answer("<answer>Left</answer>")
    assert plain.decode(said[:-1]) == "Left</answer>"
    parsed = given.parse(said, Stop.EOS)
    assert parsed.message.content == "<answer>Left</answer>"
    (span,) = parsed.spans
    assert span.name == "answer"
    assert plain.decode(said[span.start : span.end]).startswith("Left")
    with pytest.raises(UserError, match="does not start with"):
        given.answer("Left")


def test_markup_in_tool_descriptions_stays_text() -> None:
    tokenizer, renderer = case("chatml")
    mark = tokenizer.convert_tokens_to_ids("<think>")
    said = ToolSpec(name="t", description="Say <think> now.", parameters={"type": "object", "properties": {}})
    meek = ToolSpec(name="t", description="Say nothing now.", parameters={"type": "object", "properties": {}})
    ids, others = (renderer.start([user("Go.")], tools=(spec,)) for spec in (said, meek))
    assert ids.count(mark) == others.count(mark)
    assert "Say <think> now." in renderer.decode(ids)
