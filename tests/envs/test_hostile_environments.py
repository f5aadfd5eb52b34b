"""Every environment of the registry, with hostile words in what its agent says and in what it says itself.

The agent writes them, and whatever the environment repeats of it comes back: unknown tools, errors that quote. Then the
environment has them in its own texts. For that its own methods are wrapped: `rules`, `reset`, `step` and `judge`, and
what its tools give and raise. An environment has no other mouth (its runner takes texts from these and makes messages
of them), so that hostile words go from there the very way that its own go.
"""

import json
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from hostile_for_tests import (
    CONTROL,
    HOSTILE,
    JOINED,
    STYLES,
    Played,
    check_plain,
    example_arguments,
    play,
    renderer_of,
    seen_texts,
)
from turnwise.core.messages import Message
from turnwise.core.task import Task
from turnwise.envs.registry import ENVIRONMENTS, load_spec
from turnwise.envs.runner import TextEnvRunner
from turnwise.envs.seeds import seed_for
from turnwise.envs.spec import EnvSpec
from turnwise.envs.text_env import Outcome, TextEnv, goes_on
from turnwise.envs.tool_env import ToolEnv, ToolEnvRunner
from turnwise.tools.call_formats import format_call
from turnwise.tools.tool import Tool, ToolError, ToolResult, ToolSession
from turnwise.tools.toolbox import EpisodeTools

CONTROLS = "".join(CONTROL)
TURNS, TOOL_TURNS = 4, 10
TOOL_FILE = '''
def weather(city: str) -> str:
    """The weather in a city."""
    raise ValueError(f"no city {city}")

def score(answer, row):
    return answer == row["gold"]
'''

SHOWS_IMAGES = ("svg_reconstruction",)
"""The templates here are of models that read text only."""


def rows_and_a_tool(folder: Path) -> dict[str, Any]:
    """Rows are whatever the file holds: hostile in their questions, their values and the names of their columns."""
    file = folder / "mine.py"
    file.write_text(TOOL_FILE)
    rows = [{"question": f"{number} {HOSTILE}", "gold": HOSTILE, HOSTILE: HOSTILE} for number in range(20)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"tasks": str(folder / "rows.jsonl"), "tools": [f"{file}:weather"], "reward": f"{file}:score"}


NEEDED: Mapping[str, Callable[[Path], dict[str, Any]]] = {"tools": rows_and_a_tool}
"""Parameters of environments that have required ones."""


def params_of(kind: EnvSpec, folder: Path) -> dict[str, Any]:
    """Its own, with room for all that is to be said."""
    assert not kind.required_params or kind.name in NEEDED, f"say in NEEDED how to make {kind.name}"
    given = NEEDED[kind.name](folder) if kind.required_params else {}
    room = {"max_turns": max(kind.check_params(given)["max_turns"], TOOL_TURNS)}
    if issubclass(kind.cls, ToolEnv):
        room |= {"max_tool_calls": TOOL_TURNS, "max_output": 100_000}
    return kind.check_params(given | room)


def lines(runner: TextEnvRunner) -> Iterator[str]:
    """Replies of a hostile agent; those that may end the episode are last."""
    yield HOSTILE
    if isinstance(runner, ToolEnvRunner):
        yield from calls(runner)
    yield f"<think>{CONTROLS}</think>{runner.env.random_answer(random.Random(0))}"
    while True:
        yield f"<answer>{CONTROLS}</answer>"


def calls(runner: ToolEnvRunner) -> Iterator[str]:
    """Good ones, ones with hostile arguments, and where a style can name tools and arguments, hostile names."""
    style, tool = runner.tool_env.params.style, next(iter(runner._box.tools.values())).spec
    yield format_call(tool.name, example_arguments(tool), style)
    yield format_call(tool.name, example_arguments(tool, CONTROLS), style)
    if style != "python":
        yield format_call(tool.name, {**example_arguments(tool), CONTROLS: 1}, style)
        yield format_call("<s><s>", {}, style) + HOSTILE
        yield format_call(tool.name, example_arguments(tool, HOSTILE), style)


def played(kind: EnvSpec, params: dict[str, Any], template: str) -> Played:
    task = Task(env=kind.name, seed=seed_for("train", 0), params=params)
    runner = kind.make(task)
    turns = TOOL_TURNS if issubclass(kind.cls, ToolEnv) else TURNS
    episode = play(runner, lines(runner), renderer_of(template, "markup"), task, turns)
    check_plain(episode)
    return episode


def loud(text: str) -> str:
    return f"{HOSTILE}{text}{JOINED}"


@dataclass(frozen=True)
class LoudSession:
    session: ToolSession

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        try:
            result = await self.session.call(arguments)
        except ToolError as error:
            raise ToolError(loud(str(error))) from error
        return replace(result, text=loud(result.text))


class LoudTool:
    def __init__(self, tool: Tool) -> None:
        self.spec = replace(tool.spec, description=loud(tool.spec.description))
        self.rules, self.check, self._open = tool.rules, tool.check, tool.open

    @asynccontextmanager
    async def open(self, seed: int, state: Any) -> AsyncIterator[LoudSession]:
        async with self._open(seed, state) as session:
            yield LoudSession(session)


def loud_env(cls: type[TextEnv]) -> type[TextEnv]:
    """It says hostile words with all that it says, and repeats what it did not understand."""

    class LoudEnv(cls):  # type: ignore[misc,valid-type]
        def rules(self) -> str:
            return loud(super().rules())

        def reset(self, rng: random.Random) -> str:
            return loud(super().reset(rng))

        def step(self, action: str) -> Outcome:
            try:
                outcome = super().step(action)
            except ValueError:
                outcome = goes_on(f"What is {action}?")
            return replace(outcome, text=loud(outcome.text))

    if not issubclass(cls, ToolEnv):
        return LoudEnv

    class LoudToolEnv(LoudEnv):
        @classmethod
        def make_tools(cls, params: Any) -> Sequence[Tool]:
            return [LoudTool(tool) for tool in super().make_tools(params)]

        async def judge(self, action: str, messages: Sequence[Message], tools: EpisodeTools) -> Outcome:
            outcome = await super().judge(action, messages, tools)
            return replace(outcome, text=loud(outcome.text))

    return LoudToolEnv


UNHEARD = (*SHOWS_IMAGES, "openenv", "harbor", "verifiers", "text_arena_players")
"""Environments whose observations are not results of `reset` and `step`."""


@pytest.mark.parametrize("name", [name for name in ENVIRONMENTS if name not in UNHEARD])
def test_hostile_words_in_an_episode_are_text_to_the_model(name: str, tmp_path: Path, optional_part: Callable) -> None:
    kind = load_spec(name)
    if kind.install_command:
        optional_part(f"{name} needs {kind.install_command}", *kind.cls.needs)
    params, calls_tools = params_of(kind, tmp_path), issubclass(kind.cls, ToolEnv)
    templates = [STYLES[params["style"]]] if calls_tools else sorted(set(STYLES.values()))
    quiet = played(kind, params, templates[0])
    assert not calls_tools or any(word in quiet.watched.shown for word in CONTROL), "what a call said is quoted"
    for template in templates:
        episode = played(replace(kind, cls=loud_env(kind.cls)), params, template)
        opening, results = episode.watched.opening, episode.watched.results
        assert all(JOINED in message.content for message in opening.messages)
        heard = [turn for turn in seen_texts(episode) if JOINED in turn]
        assert len(heard) > 1 and (calls_tools or len(heard) == len(results))
        shown = [message for result in results for message in result.messages]
        assert not calls_tools or any(each.role == "tool" and JOINED in each.content for each in shown)
