"""The easy way to write an environment with tools: a question, tools, and what the answer is worth.

    class Capitals(ToolEnv):
        \"\"\"Name the capital.\"\"\"
        @classmethod
        def make_tools(cls, params): return [from_function(look_up)]
        def reset(self, rng): self.land = rng.choice(LANDS); return f"Capital of {self.land}?"
        def step(self, action): return won() if action == CAPITALS[self.land] else lost()

A turn with calls runs them and shows what they gave; a turn without is the answer, in `<answer>`, which `step` judges.
"""

import json
import random
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Literal

from turnwise.config.section import Positive
from turnwise.core.errors import UserError
from turnwise.core.messages import (
    Message,
    ToolCall,
    ToolSpec,
    system,
    text_parts,
    tool_schema,
    user,
)
from turnwise.core.protocols import Observation, StepResult
from turnwise.core.truncation import truncate_middle
from turnwise.envs.answers import format_answer
from turnwise.envs.runner import TextEnvRunner, TurnOutcome, pluralize, turn_info
from turnwise.envs.text_env import Outcome, StrictParams, TextEnv
from turnwise.tools.call_formats import ParsedCalls, format_call, parse_calls
from turnwise.tools.function import FunctionTool
from turnwise.tools.signature import example_arguments, format_signature, sole_text_argument
from turnwise.tools.tool import NeedsServer, RemoteToolSource, Tool, ToolResult, ToolSource
from turnwise.tools.toolbox import EpisodeTools, ToolBox, ToolServers

PROGRAM = {"code": "print(6 * 7)"}
"""What a prompt shows as a call of Python."""
Style = Literal["hermes", "llama", "mistral", "python", "answer"]


TEMPLATE_STYLES = ("hermes", "llama", "mistral")
"""Styles of models whose own chat template tells them of their tools, in the words that they were trained on."""
NO_CALLS_LEFT = "No tool calls left: answer now."

_boxes: dict[tuple[type, str], ToolBox] = {}


def shared_toolbox(env: Any) -> ToolBox:
    """Shared by all episodes of equal parameters: limits and kept answers are theirs together."""
    key = (type(env), env.params.model_dump_json())
    if key not in _boxes:
        _boxes[key] = ToolBox(type(env).make_tools(env.params), type(env).make_sources(env.params))
    return _boxes[key]


class ToolEnvRunner(TextEnvRunner):
    """`env`: a `ToolEnv`, whose module names this class."""

    def __init__(self, env: Any, start_rng: random.Random, seed: int = 0) -> None:
        super().__init__(env, start_rng, seed)
        self.tool_env, self._seed = env, seed
        self._box = shared_toolbox(env)
        self._tools: EpisodeTools | None = None
        self._open = AsyncExitStack()
        self._calls = 0
        self._said: list[Message] = []
        self._told_specs: tuple[ToolSpec, ...] = ()

    async def start(self) -> Observation:
        opening = await super().start()
        self._tools = await self._open.enter_async_context(self._box.open(self._seed, self.tool_env.tool_state()))
        self._told_specs = self._tools.specs
        specs = self._told_specs if self.tool_env.params.style in TEMPLATE_STYLES else ()
        with self._attributed("its prompt"):
            told = system(self.tool_env.prompt(self._told_specs))
            in_words = self.tool_env.tools_in_words(specs) if specs else ""
        self._said = [told, *opening.messages[1:]]
        messages = tuple(self._said)
        return Observation(messages=messages, tools=specs, tools_in_words=in_words, picture=opening.picture)

    async def step(self, action: Message) -> StepResult:
        self._said.append(action)
        calls = parse_calls(action.content, self.tool_env.params.style)
        result = await self._tool_turn(calls) if calls.attempted else await super().step(action)
        self._said += result.messages
        return result

    async def _judge(self, action: str) -> Outcome:
        if self._tools is None:
            raise RuntimeError("step before start")
        outcome: Outcome = await self.tool_env.judge(action, tuple(self._said), self._tools)
        return outcome

    async def _tool_turn(self, calls: ParsedCalls) -> StepResult:
        if self._tools is None or self._over:
            raise RuntimeError("step before start, or after the end of the episode")
        with self._attributed("state_key"):
            state = self.env.state_key()
        left = self.tool_env.params.max_tool_calls - self._calls
        run = calls.calls[: max(0, left)]
        results = await self._tools.call_all(run)
        self._calls += len(run)
        self._turns += 1
        over, success = any(result.over for result in results), any(result.success for result in results)
        self._over = over or self._turns >= self.env.max_turns
        messages = [*map(self._told, run, results), *(user(problem) for problem in calls.problems)]
        messages += self._changed_tools(self._tools.specs)
        if not self._over and (len(run) < len(calls.calls) or left <= len(run)):
            messages.append(user(NO_CALLS_LEFT))
        called = [{"name": call.name, "failed": result.failed} for call, result in zip(run, results, strict=True)]
        picture = self._draw()
        return StepResult(
            messages=tuple(messages),
            reward=sum(result.reward for result in results),
            terminated=over,
            truncated=self._over and not over,
            success=success,
            invalid=not calls.calls,
            info=turn_info(TurnOutcome(success=success), state) | {"calls": called},
            picture=picture,
        )

    def _changed_tools(self, specs: tuple[ToolSpec, ...]) -> list[Message]:
        """A server may offer other tools than before: the agent is told, since the prompt stays as it was."""
        if specs == self._told_specs:
            return []
        self._told_specs = specs
        now = ", ".join(map(format_signature, specs)) or "none"
        return [user(f"The tools have changed. There are now: {now}.")]

    def _told(self, call: ToolCall, result: ToolResult) -> Message:
        text = truncate_middle(result.text, self.tool_env.params.max_output)
        return Message(role="tool", parts=text_parts(text), call_id=call.call_id)

    async def close(self) -> None:
        await self._open.aclose()


class ToolEnv(TextEnv):
    max_turns = 6
    runner = ToolEnvRunner
    answers: bool = True
    """False: calls alone count, as where work is handed in, and the prompt says nothing of answers."""

    class Params(StrictParams):
        style: Style = "hermes"
        """How calls are written: hermes (also Qwen), llama, mistral, python (fenced blocks), answer (small models)."""
        max_tool_calls: Positive = 4
        """Maximum number of tool calls per episode."""
        max_output: Positive = 2000
        """Characters of a tool's output that the agent sees; the middle is left out."""

    @classmethod
    @abstractmethod
    def make_tools(cls, params: Any) -> Sequence[Tool]:
        """The tools of all episodes of these parameters."""

    @classmethod
    def make_sources(cls, params: Any) -> Sequence[ToolSource]:
        """Servers and the like, whose tools are known only when an episode starts."""
        return ()

    @classmethod
    def check(cls, params: Any) -> None:
        """Every tool has a name of its own, can be called in the style of the parameters, and has what it works on."""
        sources = cls.make_sources(params)
        tools = ToolBox(cls.make_tools(params), sources).tools
        others = [name for name in tools if name != "python"] + ["those of a server"] * bool(sources)
        if params.style == "python" and others:
            raise UserError(
                f'env.params.style "python" calls the tool python and no other, so not {", ".join(others)}: '
                "leave them out, or choose hermes, llama, mistral or answer"
            )
        for name, each in tools.items():
            if isinstance(each, FunctionTool) and each.takes_state and cls.tool_state is ToolEnv.tool_state:
                raise UserError(
                    f"the tool {name} takes a state, and {cls.__name__} keeps none for its tools: "
                    "leave that parameter out, or write a ToolEnv whose tool_state gives it"
                )

    @classmethod
    def notes(cls, params: Any) -> list[str]:
        """What is to be known of these parameters, a line each: told when a run starts."""
        return []

    @classmethod
    def servers(cls, params: Any) -> list[NeedsServer]:
        """Who must answer before an episode can be played: asked when a run starts."""
        tools = cls.make_tools(params)
        asked: list[NeedsServer] = [tool for tool in tools if isinstance(tool, NeedsServer)]
        serving = [source for source in cls.make_sources(params) if isinstance(source, RemoteToolSource)]
        return (
            [*asked, ToolServers(local_names=[tool.spec.name for tool in tools], sources=serving)] if serving else asked
        )

    async def judge(self, action: str, said: Sequence[Message], tools: EpisodeTools) -> Outcome:
        """What an answer is worth: `step`, unless judging it waits for something. `said`: the episode up to here."""
        return self.step(action)

    def prompt(self, specs: Sequence[ToolSpec]) -> str:
        """The system message: rules, limits, how to call and how to answer."""
        limits = (
            f"At most {pluralize(self.max_turns, 'turn')} and {pluralize(self.params.max_tool_calls, 'call')} in all."
        )
        answering = f"Answer: {format_answer(['answer'])}. You may think first: <think>thoughts</think>."
        lines = (self.rules(), limits, self.calling_text(specs), answering if self.answers else "")
        return "\n".join(line for line in lines if line)

    def calling_text(self, specs: Sequence[ToolSpec]) -> str:
        """How tools are called, where the chat template does not tell of them."""
        if self.params.style == "python":
            return "Code in a block is run, and you see what it prints:\n" + format_call("python", PROGRAM, "python")
        if self.params.style != "answer":
            return ""
        lines = [_unmarked(f"- {format_signature(spec)}: {spec.description}") for spec in specs]
        forms = [_example(specs[0]), *(_example(spec) for spec in specs[1:] if sole_text_argument(spec) is None)]
        return "\n".join(["Tools:", *lines, f"Call: {' or '.join(forms[:2])}."])

    def tools_in_words(self, specs: Sequence[ToolSpec]) -> str:
        """The tools and the form of a call, for models whose chat template tells of none."""
        shown = [json.dumps(tool_schema(spec)["function"], ensure_ascii=False) for spec in specs]
        example = self.call(specs[0].name, **json.loads(_unmarked(json.dumps(example_arguments(specs[0])))))
        return "\n".join(["Tools:", *map(_unmarked, shown), f"A call: {example}"])

    def tool_state(self) -> Any:
        """What the tools of this episode are given to work on, after `reset`."""
        return None

    def call(self, tool: str, /, **arguments: Any) -> str:
        """A call as this environment's agents write it."""
        return format_call(tool, arguments, self.params.style)

    def reply(self, actions: Sequence[str], think: str | None = None) -> str:
        """`actions`: one call as `call` writes it, or an answer."""
        if parse_calls(actions[0], self.params.style).calls:
            return actions[0] if think is None else f"<think>{think}</think>{actions[0]}"
        return format_answer(actions, think)


def _unmarked(text: str) -> str:
    """A server's words stand in the prompt here: marks such as <think> must not mean there what they say."""
    return text.replace("<", "‹").replace(">", "›")


def _example(spec: ToolSpec) -> str:
    alone = sole_text_argument(spec)
    given = json.dumps(example_arguments(spec), ensure_ascii=False) if alone is None else alone.upper()
    return f"<call>{_unmarked(f'{spec.name} {given}')}</call>"
