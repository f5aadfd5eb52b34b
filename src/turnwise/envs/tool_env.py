"""ToolEnv: write an environment with tools by giving a question, the tools and the outcome of an answer.

    class Capitals(ToolEnv):
        \"\"\"Name the capital.\"\"\"
        @classmethod
        def make_tools(cls, params): return [look_up]
        def reset(self, rng): self.land = rng.choice(LANDS); return f"Capital of {self.land}?"
        def step(self, action): return won() if action == CAPITALS[self.land] else lost()

A turn with tool calls runs them and shows their results; a turn without is the answer, in `<answer>`, passed to `step`.
"""

import json
import random
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Literal

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
from turnwise.envs.answers import format_answer
from turnwise.envs.param_setting import param_setting
from turnwise.envs.runner import TextEnvRunner, TurnOutcome, pluralize, turn_info
from turnwise.envs.text_env import Outcome, StrictParams, TextEnv, reasoning_params
from turnwise.settings.section import Positive
from turnwise.text.truncation import truncate_middle
from turnwise.tools.call_formats import ParsedCalls, format_call, parse_calls
from turnwise.tools.function import FunctionTool, from_function
from turnwise.tools.signature import example_arguments, format_signature, random_arguments, sole_text_argument
from turnwise.tools.tool import NeedsServer, RemoteToolSource, Tool, ToolResult, ToolSource
from turnwise.tools.toolbox import EpisodeTools, ToolBox, ToolServers

EXAMPLE_PROGRAM = {"code": "print(6 * 7)"}
"""Example of a Python call in the prompt."""
Style = Literal["hermes", "llama", "mistral", "python", "answer"]
TEMPLATE_STYLES = ("hermes", "llama", "mistral")
"""Call styles of models whose chat template lists the tools itself."""
MAX_WORDS = 50
"""Words of the last message that may become arguments of a random call."""
WORD_ENDS = ".,:;!?\"'()"
NO_CALLS_LEFT = "No tool calls left: answer now."

_boxes: dict[tuple[type, str], ToolBox] = {}


def shared_toolbox(env: "ToolEnv") -> ToolBox:
    """Return the toolbox that all episodes with the same parameters share, with its limits and caches."""
    key = (type(env), env.params.model_dump_json())
    if key not in _boxes:
        _boxes[key] = ToolBox(type(env).build_tools(env.params), type(env).make_sources(env.params))
    return _boxes[key]


class ToolEnvRunner(TextEnvRunner):
    """Run a `ToolEnv` as a core `Env`: run calls and show their results, judge answers."""

    def __init__(self, env: "ToolEnv", start_rng: random.Random, seed: int = 0) -> None:
        super().__init__(env, start_rng, seed)
        self.tool_env: Any = env  # subclasses call methods of their own environments
        self._seed = seed
        self._box = shared_toolbox(env)
        self._tools: EpisodeTools | None = None
        self._open = AsyncExitStack()
        self._calls = 0
        self._messages: list[Message] = []
        self._shown_specs: tuple[ToolSpec, ...] = ()

    async def start(self) -> Observation:
        opening = await super().start()
        self._tools = await self._open.enter_async_context(self._box.open(self._seed, self.tool_env.tool_state()))
        self._shown_specs = self._tools.specs
        specs = self._shown_specs if self.tool_env.params.style in TEMPLATE_STYLES else ()
        with self._attribute_errors("prompt"):
            prompt = system(self.tool_env.prompt(self._shown_specs))
            in_words = self.tool_env.tools_in_words(specs) if specs else ""
        self._messages = [prompt, *opening.messages[1:]]
        return Observation(
            messages=tuple(self._messages), tools=specs, tools_in_words=in_words, picture=opening.picture
        )

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """Tools that the agent knows of."""
        return self._shown_specs

    async def step(self, action: Message) -> StepResult:
        self._messages.append(action)
        calls = parse_calls(action.content, self.tool_env.params.style)
        result = await self._tool_turn(calls) if calls.attempted else await super().step(action)
        self._messages += result.messages
        return result

    def random_answer(self, rng: random.Random) -> str | None:
        """Return the environment's own random reply; without one, a random call of a tool every other time."""
        answer = super().random_answer(rng)
        if answer is not None or not self._shown_specs or rng.random() < 0.5:
            return answer
        spec, words = rng.choice(self._shown_specs), self._messages[-1].content.split()
        arguments = random_arguments(spec, rng, [word.strip(WORD_ENDS) for word in words[-MAX_WORDS:]])
        call: str = self.tool_env.call(spec.name, **arguments)
        return call

    async def _judge(self, action: str) -> Outcome:
        if self._tools is None:
            raise RuntimeError("step before start")
        outcome: Outcome = await self.tool_env.judge(action, tuple(self._messages), self._tools)
        return outcome

    async def _tool_turn(self, calls: ParsedCalls) -> StepResult:
        if self._tools is None or self._over:
            raise RuntimeError("step before start, or after the end of the episode")
        state = self._state_key()
        left = self.tool_env.params.max_tool_calls - self._calls
        run = calls.calls[: max(0, left)]
        results = await self._tools.call_all(run)
        self._calls += len(run)
        self._turns += 1
        over, success = any(result.over for result in results), any(result.success for result in results)
        self._over = over or self._turns >= self.env.max_turns
        messages = [*map(self._tool_message, run, results), *(user(problem) for problem in calls.problems)]
        messages += self._tools_changed(self._tools.specs)
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

    def _tools_changed(self, specs: tuple[ToolSpec, ...]) -> list[Message]:
        """Announce tools that a server has changed, since the prompt cannot change."""
        if specs == self._shown_specs:
            return []
        self._shown_specs = specs
        now = ", ".join(map(format_signature, specs)) or "none"
        return [user(f"The tools have changed. There are now: {now}.")]

    def _tool_message(self, call: ToolCall, result: ToolResult) -> Message:
        text = truncate_middle(result.text, self.tool_env.params.max_output)
        return Message(role="tool", parts=(*text_parts(text), *result.images), call_id=call.call_id)

    async def close(self) -> None:
        await self._open.aclose()


class ToolEnv(TextEnv):
    """Rules of an environment with tools; see `TextEnv`."""

    max_turns = 6
    runner = ToolEnvRunner
    answers: bool = True
    """False if only calls count, such as submissions; the prompt then does not mention answers."""

    class Params(StrictParams):
        """Parameters of every environment with tools: style, max_tool_calls and max_output."""

        style: Style = "hermes"
        """Format of tool calls: hermes (also Qwen), llama, mistral, python (fenced blocks) or answer (small models)."""
        max_tool_calls: Positive = 4
        """Maximum number of tool calls per episode."""
        max_output: Positive = 2000
        """Characters of a tool's output that the agent sees; longer output is truncated in the middle."""

    @classmethod
    def common_params(cls) -> dict[str, Any]:
        """Return the limits. Replies with tool calls have no sections that describe states."""
        reasoning = reasoning_params(cls.knows_state())
        return {name: field for name, field in super().common_params().items() if name not in reasoning}

    @classmethod
    @abstractmethod
    def make_tools(cls, params: Any) -> Sequence[Tool | Callable[..., Any]]:
        """Return the tools of all episodes with these parameters: functions or `Tool` objects."""

    @classmethod
    def build_tools(cls, params: Any) -> list[Tool]:
        """Return the tools of `make_tools`, with functions as tools."""
        return [from_function(tool) if callable(tool) else tool for tool in cls.make_tools(params)]

    @classmethod
    def make_sources(cls, params: Any) -> Sequence[ToolSource]:
        """Return sources, such as servers, whose tools are known only when an episode starts."""
        return ()

    @classmethod
    def check(cls, params: Any) -> None:
        """Check that tool names are unique, the call style can call them, and the state they take exists."""
        sources = cls.make_sources(params)
        tools = ToolBox(cls.build_tools(params), sources).tools
        others = [name for name in tools if name != "python"] + ["a server's tools"] * bool(sources)
        if params.style == "python" and others:
            raise UserError(
                f'{param_setting("style")} "python" can call only the tool python, not {", ".join(others)}: '
                "remove them, or choose hermes, llama, mistral or answer."
            )
        for name, tool in tools.items():
            if isinstance(tool, FunctionTool) and tool.takes_state and cls.tool_state is ToolEnv.tool_state:
                raise UserError(
                    f"The tool {name} takes a state, but {cls.__name__} has none for its tools: "
                    "remove that parameter, or write a ToolEnv with a tool_state."
                )

    @classmethod
    def notes(cls, params: Any) -> list[str]:
        """Return notes about these parameters, printed when a run starts."""
        return []

    @classmethod
    def servers(cls, params: Any) -> list[NeedsServer]:
        """Return the servers that episodes need; a run checks them at its start."""
        tools = cls.build_tools(params)
        needed: list[NeedsServer] = [tool for tool in tools if isinstance(tool, NeedsServer)]
        remote = [source for source in cls.make_sources(params) if isinstance(source, RemoteToolSource)]
        return (
            [*needed, ToolServers(local_names=[tool.spec.name for tool in tools], sources=remote)] if remote else needed
        )

    async def judge(self, action: str, messages: Sequence[Message], tools: EpisodeTools) -> Outcome:
        """Return the outcome of an answer: `step`, unless it needs to await. `messages`: the conversation so far."""
        outcome = self.step(action)
        return await outcome if isinstance(outcome, Awaitable) else outcome

    def prompt(self, specs: Sequence[ToolSpec]) -> str:
        """Return the system message: rules, limits, how to call tools and how to answer."""
        limits = (
            f"At most {pluralize(self.max_turns, 'turn')} and {pluralize(self.params.max_tool_calls, 'call')} in all."
        )
        answering = f"Answer: {format_answer(['answer'])}. You may think first: <think>thoughts</think>."
        lines = (self.rules(), limits, self.calling_text(specs), answering if self.answers else "")
        return "\n".join(line for line in lines if line)

    def calling_text(self, specs: Sequence[ToolSpec]) -> str:
        """Explain how to call tools, for call styles that the chat template does not explain."""
        return describe_calls(specs, self.params.style)

    def tools_in_words(self, specs: Sequence[ToolSpec]) -> str:
        """Describe the tools and the call format, for models whose chat template has no tools."""
        return describe_tools(specs, self.params.style)

    def tool_state(self) -> Any:
        """Return the state that this episode's tools work on, after `reset`."""
        return None

    def call(self, tool: str, /, **arguments: Any) -> str:
        """Format a tool call in this environment's style."""
        return format_call(tool, arguments, self.params.style)

    def reply(self, actions: Sequence[str], think: str | None = None) -> str:
        """Return a whole assistant reply. `actions`: one call, formatted by `call`, or an answer."""
        if parse_calls(actions[0], self.params.style).calls:
            return actions[0] if think is None else f"<think>{think}</think>{actions[0]}"
        return format_answer(actions, think)


def describe_calls(specs: Sequence[ToolSpec], style: Style) -> str:
    """Explain how to call tools in a style that chat templates do not explain; empty for the others."""
    if style == "python":
        return "Code in a block is run, and you see what it prints:\n" + format_call("python", EXAMPLE_PROGRAM, style)
    if style != "answer":
        return ""
    lines = [escape_tags(f"- {format_signature(spec)}: {spec.description}") for spec in specs]
    forms = [_example(specs[0]), *(_example(spec) for spec in specs[1:] if sole_text_argument(spec) is None)]
    return "\n".join(["Tools:", *lines, f"Call: {' or '.join(forms[:2])}."])


def describe_tools(specs: Sequence[ToolSpec], style: Style) -> str:
    """Describe the tools and the format of calls, for models whose chat template has no tools."""
    shown = [json.dumps(tool_schema(spec)["function"], ensure_ascii=False) for spec in specs]
    example = format_call(specs[0].name, json.loads(escape_tags(json.dumps(example_arguments(specs[0])))), style)
    return "\n".join(["Tools:", *map(escape_tags, shown), f"A call: {example}"])


def escape_tags(text: str) -> str:
    """Escape tags such as <think> in a server's untrusted texts."""
    return text.replace("<", "‹").replace(">", "›")


def _example(spec: ToolSpec) -> str:
    name = sole_text_argument(spec)
    arguments = json.dumps(example_arguments(spec), ensure_ascii=False) if name is None else name.upper()
    return f"<call>{escape_tags(f'{spec.name} {arguments}')}</call>"
