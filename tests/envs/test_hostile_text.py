"""Text from tools, servers and environments may hold anything: it is never more than text to the model."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from hostile_for_tests import (
    HOSTILE,
    MEEK,
    ORDER,
    STYLES,
    WORDS,
    Called,
    added,
    check_plain,
    play,
    renderer_of,
    seen_texts,
)
from mcp_tools_for_tests import RAW
from turnwise.core.messages import Message, ToolSpec, system, text_parts, user
from turnwise.core.task import Task
from turnwise.core.trajectory import Stop
from turnwise.envs.seeds import seed_for
from turnwise.envs.spec import EnvSpec
from turnwise.envs.text_env import Outcome, goes_on
from turnwise.envs.tool_env import ToolEnv
from turnwise.tools.call_formats import format_call
from turnwise.tools.function import from_function
from turnwise.tools.mcp.factory import make_mcp_source
from turnwise.tools.tool import Tool, ToolError, ToolSource

CALLED: tuple[Called, ...] = ("special", "markup")


def python(code: str) -> str:
    """Whatever it is given to run."""
    return f"{code}{HOSTILE}"


def refuse(text: str) -> str:
    """Says it in its refusal."""
    raise ToolError(f"{text}{HOSTILE}")


class Saying(ToolEnv):
    """Say it."""

    @classmethod
    def make_tools(cls, params: Any) -> Sequence[Tool]:
        return [from_function(python), from_function(refuse)]

    @classmethod
    def make_sources(cls, params: Any) -> Sequence[ToolSource]:
        return [make_mcp_source({"mcp": RAW})]

    def reset(self, rng: random.Random) -> str:
        return HOSTILE

    def step(self, action: str) -> Outcome:
        return goes_on(HOSTILE)


KIND = EnvSpec(name="saying", id="", cls=Saying)


@pytest.mark.parametrize("called", CALLED)
@pytest.mark.parametrize("style", STYLES)
def test_observations_add_no_special_token(style: str, called: Called) -> None:
    """A tool's answer, and where the style can name tools: a refusal, a server's answer, a name that is none; last the
    environment's own words.
    """
    params = KIND.check_params({"style": style, "max_output": 10_000, "max_turns": 5})
    task = Task(env="saying", seed=seed_for("train", 0), params=params)
    answers = [format_call("python", {"code": "1"}, style)]
    if style != "python":
        others = ("refuse", {"text": "no"}), ("do", {"how": f"says {HOSTILE.encode().hex()}"}), ("<s><s>", {})
        answers += [format_call(name, arguments, style) for name, arguments in others]
    lines = iter([*answers, "<answer>well</answer>"])
    episode = play(KIND.make(task), lines, renderer_of(STYLES[style], called), task, turns=len(answers) + 1)
    check_plain(episode)
    shown = ["".join(message.content for message in result.messages) for result in episode.watched.results]
    expected = [HOSTILE in text for text in shown]
    assert expected == ([True, True] if style == "python" else [True, True, True, False, True])
    assert style == "python" or "no tool '<s><s>'" in shown[3]
    assert ORDER.strip() in seen_texts(episode)[0]


@pytest.mark.parametrize("called", CALLED)
@pytest.mark.parametrize("template", sorted(set(STYLES.values())))
def test_tool_descriptions_add_no_special_token(template: str, called: Called) -> None:
    renderer = renderer_of(template, called)

    def spec(text: str) -> ToolSpec:
        schema = {"type": "object", "properties": {text: {"type": "string", "description": text, "enum": [text]}}}
        return ToolSpec(name="say", description=text, parameters=schema)

    talk = [system("Be kind."), user("Well?")]
    hostile, meek = (renderer.start(talk, [spec(text)]) for text in (HOSTILE, MEEK))
    assert added(renderer, hostile) == added(renderer, meek)


@pytest.mark.parametrize("called", CALLED)
@pytest.mark.parametrize("template", sorted(set(STYLES.values())))
def test_message_text_adds_no_special_token(template: str, called: Called) -> None:
    """One by one, and cut in two by the border of two messages."""
    renderer = renderer_of(template, called)
    for word in WORDS:
        for texts in ((word,), (f"a{word}b",), (word[:3], word[3:])):
            said = [Message(role="tool", parts=text_parts(text), call_id="call00000") for text in texts]
            meek = [Message(role="tool", parts=text_parts(MEEK), call_id="call00000") for _ in texts]
            hostile, plain = (renderer.extend(messages, Stop.EOS) for messages in (said, meek))
            assert added(renderer, hostile) == added(renderer, plain) != [], (word, texts)


@pytest.mark.parametrize("called", CALLED)
@pytest.mark.parametrize("template", sorted(set(STYLES.values())))
def test_system_message_ends_no_turn(template: str, called: Called) -> None:
    """It may mean <think> where that is a mark; of what is special it means nothing."""
    renderer = renderer_of(template, called)
    hostile, meek = (renderer.start([system(text), user("Go.")]) for text in (HOSTILE, MEEK))
    special = [[token for token in ids if renderer.name_token(token).special] for ids in (hostile, meek)]
    assert special[0] == special[1] != []
    assert ORDER.strip() in renderer.decode(hostile)
