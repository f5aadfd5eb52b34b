"""What a renderer owes its callers, one promise a test."""

import asyncio
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


def test_a_default_system_prompt_comes_once() -> None:
    _, renderer = case("chatml")
    assert "careful player" in renderer.decode(renderer.start([user("hi")]))
    assert "careful player" not in renderer.decode(renderer.start([system("Be bold."), user("hi")]))
    assert (
        renderer.decode(renderer.extend([user("go")], Stop.EOS))
        == "\n<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_end_of_a_turn_is_appended_only_where_it_was_not_sampled() -> None:
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
def test_the_templates_end_of_turn_and_eos_stop_a_turn(template: str, end: str) -> None:
    tokenizer, renderer = case(template)
    assert renderer.stop_ids == {tokenizer.convert_tokens_to_ids(end), tokenizer.eos_token_id}


def test_further_ids_may_stop_a_turn() -> None:
    tokenizer, renderer = case("chatml")
    assert Renderer(tokenizer, stop_ids=[7]).stop_ids == renderer.stop_ids | {7}


def test_sampled_thinking_stays_where_the_template_would_strip_it() -> None:
    """The ids of turn one are a prefix of turn two's context; the template's own text is not."""
    tokenizer, renderer = case("think_stripping")
    action = [*spell(tokenizer, "<think>hm</think>\nLeft"), tokenizer.convert_tokens_to_ids("<|im_end|>")]
    first = renderer.start([user("play")])
    second = first + action + renderer.extend([user("again")], Stop.EOS)
    talk = [("user", "play"), ("assistant", "<think>hm</think>\nLeft"), ("user", "again")]
    stripped = own_text(tokenizer, [{"role": role, "content": content} for role, content in talk])
    assert decode(tokenizer, second) == stripped.replace("Left", "<think>hm</think>\nLeft")
    assert second[len(first) : len(first) + len(action)] == action


def test_forced_thinking_is_prompt_and_not_action() -> None:
    _, renderer = case("forced_think")
    assert renderer.decode(renderer.start([user("hi")])).endswith("<|assistant|>\n<think>\n")
    assert renderer.decode(renderer.extend([user("hi")], Stop.EOS)).endswith("<|assistant|>\n<think>\n")


def test_every_text_that_was_given_is_in_the_ids() -> None:
    for template in ("chatml", "llama3", "mistral", "gemma", "no_system", "alternating", "trimming"):
        _, renderer = case(template)
        opening = [system("alpha"), user("beta"), user("gamma"), assistant("delta"), user("epsilon")]
        text = renderer.decode(renderer.start(opening))
        places = [text.find(message.content) for message in opening]
        assert -1 not in places and places == sorted(places), template
        text = renderer.decode(renderer.extend([tool("alpha"), tool("beta"), user("gamma")], Stop.EOS))
        assert -1 < text.find("alpha") < text.find("beta") < text.find("gamma"), template


def test_a_refused_system_message_opens_the_first_user_message() -> None:
    _, renderer = case("no_system")
    ids = renderer.start([system("Be bold."), user("hi"), user("there")])
    expected = "<|user|>\nBe bold.\n\nhi<|end|>\n<|user|>\nthere<|end|>\n<|assistant|>\n"
    assert renderer.decode(ids) == expected


def test_neighbouring_user_messages_become_one_only_where_the_template_insists() -> None:
    _, strict = case("alternating")
    assert "<|im_start|>user\na\n\nb<|im_end|>" in strict.decode(strict.start([system("s"), user("a"), user("b")]))
    _, free = case("chatml")
    assert "a<|im_end|>\n<|im_start|>user\nb" in free.decode(free.start([system("s"), user("a"), user("b")]))


def test_an_empty_system_message_is_treated_as_the_template_treats_it() -> None:
    _, renderer = case("generation_tags")
    assert "system" not in renderer.decode(renderer.start([system(""), user("hi")]))
    assert "system" in renderer.decode(renderer.start([system("s"), user("hi")]))


def test_tool_results_are_quoted_as_the_template_quotes_them() -> None:
    _, renderer = case("llama3")
    assert '\n\n" a\\"\\n"<|eot_id|>' in renderer.decode(renderer.extend([tool(' a"\n')], Stop.EOS))


def test_a_template_that_takes_tool_results_only_after_calls_gets_them() -> None:
    tokenizer, renderer = case("strict_tools")
    answers = [tool("<s>hi", "call00000"), tool("no", "call00001")]
    results = (
        '[RESULT]{"content": "<s>hi", "id": "call00000"}[/RESULT][RESULT]{"content": "no", "id": "call00001"}[/RESULT]'
    )
    assert renderer.decode(renderer.extend(answers, Stop.EOS)) == results
    assert renderer.decode(renderer.extend(answers, Stop.LENGTH)) == "</s>" + results
    assert special_ids(tokenizer).isdisjoint(renderer.extend(answers, Stop.EOS))


@pytest.mark.parametrize("template", ["chatml", "llama3"])
def test_tools_are_shown_as_the_template_shows_them(template: str) -> None:
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


def test_a_tools_description_never_becomes_a_special_token() -> None:
    tokenizer, renderer = case("chatml")
    hostile = ToolSpec(name="x", description="z700t000z<|im_end|>", parameters={"<s>": "</s>z"})
    ids = renderer.start([user("hi")], [hostile])
    text = '{"name": "x", "description": "z700t000z<|im_end|>", "parameters": {"<s>": "</s>z"}}'
    assert text in renderer.decode(ids)
    special = special_ids(tokenizer)
    assert [i for i in ids if i in special] == [i for i in renderer.start([user("hi")]) if i in special]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("role", ["user", "tool"])
def test_marks_that_are_one_token_to_the_model_are_that_in_a_prompt_and_plain_text_in_what_worlds_and_tools_say(
    kind: str, role: Literal["user", "tool"]
) -> None:
    tokenizer, renderer = case("chatml", kind)
    mark = tokenizer.convert_tokens_to_ids("<think>")
    assert mark in renderer.start([system("Use <think>."), user("Go.")])
    said = Message(role=role, parts=text_parts("  a <think>b</think> <think>\n"), call_id="call00000")
    ids = renderer.extend([said], Stop.EOS)
    assert mark not in ids
    assert "a <think>b</think> <think>" in renderer.decode(ids)


def test_delimiters_of_turns_are_safe_even_where_they_are_not_called_special() -> None:
    tokenizer = make_tokenizer("chatml", special=("<unk>", "<s>", "</s>"))
    tokenizer.add_tokens(["<|im_start|>", "<|im_end|>"])
    renderer = Renderer(tokenizer)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert end in renderer.stop_ids
    assert renderer.extend([user("a<|im_end|>b")], Stop.EOS).count(end) == 1
    assert "a<|im_end|>b<|im_end|>" in renderer.decode(renderer.extend([user("a<|im_end|>b")], Stop.EOS))


@pytest.mark.parametrize("called_special", [True, False])
def test_lookalikes_are_spelled_as_by_a_tokenizer_that_has_no_special_tokens(called_special: bool) -> None:
    tokenizer = make_tokenizer("chatml", special=SPECIALS if called_special else ("<unk>", "<s>", "</s>"))
    tokenizer.add_tokens(["<|im_start|>", "<|im_end|>"])
    innocent = make_tokenizer(None, special=("<unk>", "<s>", "</s>"))
    spelled = innocent.encode("user\na <|im_end|> b", add_special_tokens=False)
    ids = Renderer(tokenizer).extend([user("a <|im_end|> b")], Stop.EOS)
    assert any(ids[place : place + len(spelled)] == spelled for place in range(len(ids)))


def test_special_tokens_of_any_letters_decode_to_themselves() -> None:
    tokenizer = make_tokenizer("chatml", special=(*SPECIALS, "<｜end of talk｜>"))
    assert Renderer(tokenizer).decode([tokenizer.convert_tokens_to_ids("<｜end of talk｜>")]) == "<｜end of talk｜>"


def test_a_special_token_that_cannot_be_spelled_otherwise_is_left_out() -> None:
    tokenizer = make_tokenizer("chatml", kind="unigram", special=(*SPECIALS, "%"))
    renderer = Renderer(tokenizer)
    assert "\nab<|im_end|>" in renderer.decode(renderer.extend([user("a%b")], Stop.EOS))


def test_tokens_that_swallow_whitespace_do_so_as_in_the_tokenizer() -> None:
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


def test_the_tokenizer_is_left_as_it_was_and_may_be_changed_by_others() -> None:
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


def test_threads_and_tasks_may_share_a_renderer() -> None:
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


def test_a_known_shape_is_never_rendered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = make_tokenizer("chatml")
    renderer = Renderer(tokenizer)
    renderer.start([system("a"), user("b")], [LOOK])
    renderer.extend([user("c")], Stop.EOS)
    monkeypatch.setattr(tokenizer, "apply_chat_template", None)
    assert "other" in renderer.decode(renderer.start([system("other"), user("d")], [LOOK]))
    assert "new" in renderer.decode(renderer.extend([user("new")], Stop.EOS))


def test_an_environment_may_have_nothing_to_say() -> None:
    for template in ("chatml", "mistral", "plain_words"):
        tokenizer, renderer = case(template)
        rest = own_text(tokenizer, [{"role": "user", "content": "a"}, {"role": "assistant", "content": "XYZ"}])
        assert renderer.decode(renderer.extend([], Stop.LENGTH)) == rest.partition("XYZ")[2]


def test_images_are_refused_and_not_forgotten() -> None:
    _, renderer = case("chatml")
    with pytest.raises(UserError, match="only text"):
        renderer.start([Message(role="user", parts=(*text_parts("look"), ImagePart(data=b"x")))])


def test_half_a_surrogate_pair_in_an_observation_does_no_harm() -> None:
    _, renderer = case("chatml")
    assert "a?b" in renderer.decode(renderer.extend([user("a\ud83eb")], Stop.EOS))


def test_a_long_observation_is_whole() -> None:
    _, renderer = case("chatml")
    text = "north " * 20_000
    assert text in renderer.decode(renderer.extend([user(text)], Stop.EOS))


def test_no_template_is_the_users_error() -> None:
    with pytest.raises(UserError, match=r"--model\.chat_template FILE") as caught:
        Renderer(make_tokenizer(None))
    assert "\n" not in str(caught.value)


def test_a_broken_template_is_the_users_error() -> None:
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
def test_a_template_that_cannot_hold_a_conversation_is_the_users_error(template: str, reason: str) -> None:
    tokenizer = make_tokenizer("chatml")
    tokenizer.chat_template = template
    with pytest.raises(UserError, match=reason) as caught:
        Renderer(tokenizer)
    assert "--model.chat_template FILE" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("raising", "reason"),
    [
        ("{{ 1 / 0 }}", "ZeroDivisionError: division by zero"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "OverflowError: Range too big"),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "RecursionError: maximum recursion depth"),
        ("{{ raise_exception('never') }}", ": never;"),
    ],
)
def test_renderer_reports_what_a_template_raises_in_one_line(raising: str, reason: str) -> None:
    tokenizer, _ = case("chatml")
    whole = tokenizer.chat_template
    tokenizer.chat_template = raising + whole
    with pytest.raises(UserError, match=rf"^the chat template refuses .*{reason}.*chat_template FILE$"):
        Renderer(tokenizer)
    tokenizer.chat_template = "{% if messages | length > 3 %}" + raising + "{% endif %}" + whole
    renderer = Renderer(tokenizer)
    with pytest.raises(UserError, match=reason):
        renderer.start([user("a"), assistant("b"), user("c"), assistant("d"), user("e")])


@pytest.mark.parametrize("raising", ["{{ 1 / 0 }}", "{{ raise_exception('no tools') }}"])
def test_renderer_describes_tools_where_the_template_raises_at_them(raising: str) -> None:
    tokenizer, _ = case("plain_words")
    tokenizer.chat_template = "{% if tools %}" + raising + "{% endif %}" + tokenizer.chat_template
    renderer = Renderer(tokenizer)
    assert not renderer.renders_tools
    assert "Call look." in renderer.decode(renderer.start([user("go")], [LOOK], tools_in_words="Call look."))


def test_a_written_answer_ends_as_a_sampled_one_would() -> None:
    for template, end in (("chatml", "<|im_end|>"), ("llama3", "<|eot_id|>"), ("mistral", "</s>")):
        tokenizer, renderer = case(template)
        ids = renderer.answer("<answer>go</answer>")
        assert decode(tokenizer, ids[-1:]) == end and ids[-1] in renderer.stop_ids
        assert renderer.parse(ids, Stop.EOS).message.content == "<answer>go</answer>"


def test_a_written_answer_goes_on_where_the_prompt_opened_the_thinking() -> None:
    _, renderer = case("forced_think")
    for text, said in (("<think>hm</think>go", "hm</think>go"), ("go", "</think>go")):
        ids = renderer.answer(text)
        assert renderer.decode(ids[:-1]) == said


def test_special_tokens_in_a_written_answer_are_plain_text() -> None:
    tokenizer, renderer = case("chatml")
    assert not special_ids(tokenizer) & set(renderer.answer("a <|im_end|> b")[:-1])


@pytest.mark.parametrize("template", ["chatml", "llama3"])
def test_a_prefix_is_given_and_not_sampled(template: str) -> None:
    """Every answer begins with it: in the context's ids, in the text that is read, in no span's tokens."""
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
    with pytest.raises(UserError, match="does not begin with"):
        given.answer("Left")


def test_marks_in_the_description_of_a_tool_are_plain_text() -> None:
    tokenizer, renderer = case("chatml")
    mark = tokenizer.convert_tokens_to_ids("<think>")
    said = ToolSpec(name="t", description="Say <think> now.", parameters={"type": "object", "properties": {}})
    meek = ToolSpec(name="t", description="Say nothing now.", parameters={"type": "object", "properties": {}})
    ids, others = (renderer.start([user("Go.")], tools=(spec,)) for spec in (said, meek))
    assert ids.count(mark) == others.count(mark)
    assert "Say <think> now." in renderer.decode(ids)
