"""Runs a `ToolEnv` as the core's `Env`: calls are run and told, answers are judged."""

import random
from contextlib import AsyncExitStack
from typing import Any

from turnwise.core.messages import Message, ToolCall, ToolSpec, system, user
from turnwise.core.protocols import Observation, StepResult
from turnwise.envs.runner import Ran, TextEnvRunner, turn_info
from turnwise.envs.text_env import Outcome
from turnwise.sandbox.shortening import shortened
from turnwise.tools.box import ToolBox, ToolHands
from turnwise.tools.formats import Calls, read_calls
from turnwise.tools.signature import signature
from turnwise.tools.tool import ToolResult

TOLD_BY_TEMPLATE = ("hermes", "llama", "mistral")
"""Styles of models whose own chat template tells them of their tools, in the words that they were trained on."""
NONE_LEFT = "No tool calls left: answer now."

_boxes: dict[tuple[type, str], ToolBox] = {}


def box_of(env: Any) -> ToolBox:
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
        self._box = box_of(env)
        self._hands: ToolHands | None = None
        self._open = AsyncExitStack()
        self._calls = 0
        self._said: list[Message] = []
        self._told_specs: tuple[ToolSpec, ...] = ()

    async def start(self) -> Observation:
        opening = await super().start()
        self._hands = await self._open.enter_async_context(self._box.open(self._seed, self.tool_env.tool_state()))
        self._told_specs = self._hands.specs
        specs = self._told_specs if self.tool_env.params.style in TOLD_BY_TEMPLATE else ()
        with self._attributed("its prompt"):
            told = system(self.tool_env.prompt(self._told_specs))
            in_words = self.tool_env.tools_in_words(specs) if specs else ""
        self._said = [told, *opening.messages[1:]]
        messages = tuple(self._said)
        return Observation(messages=messages, tools=specs, tools_in_words=in_words, picture=opening.picture)

    async def step(self, action: Message) -> StepResult:
        self._said.append(action)
        calls = read_calls(action.content, self.tool_env.params.style)
        result = await self._tool_turn(calls) if calls.attempted else await super().step(action)
        self._said += result.messages
        return result

    async def _judge(self, action: str) -> Outcome:
        if self._hands is None:
            raise RuntimeError("step before start")
        outcome: Outcome = await self.tool_env.judge(action, tuple(self._said), self._hands)
        return outcome

    async def _tool_turn(self, calls: Calls) -> StepResult:
        if self._hands is None or self._over:
            raise RuntimeError("step before start, or after the end of the episode")
        with self._attributed("state_key"):
            state = self.env.state_key()
        left = self.tool_env.params.max_tool_calls - self._calls
        run = calls.calls[: max(0, left)]
        results = await self._hands.call_all(run)
        self._calls += len(run)
        self._turns += 1
        over, success = any(result.over for result in results), any(result.success for result in results)
        self._over = over or self._turns >= self.env.max_turns
        messages = [*map(self._told, run, results), *(user(problem) for problem in calls.problems)]
        messages += self._changed_tools(self._hands.specs)
        if not self._over and (len(run) < len(calls.calls) or left <= len(run)):
            messages.append(user(NONE_LEFT))
        called = [{"name": call.name, "failed": result.failed} for call, result in zip(run, results, strict=True)]
        picture = self._draw()
        return StepResult(
            messages=tuple(messages),
            reward=sum(result.reward for result in results),
            terminated=over,
            truncated=self._over and not over,
            success=success,
            invalid=not calls.calls,
            info=turn_info(Ran(success=success), state) | {"calls": called},
            picture=picture,
        )

    def _changed_tools(self, specs: tuple[ToolSpec, ...]) -> list[Message]:
        """A server may offer other tools than before: the agent is told, since the prompt stays as it was."""
        if specs == self._told_specs:
            return []
        self._told_specs = specs
        now = ", ".join(map(signature, specs)) or "none"
        return [user(f"The tools have changed. There are now: {now}.")]

    def _told(self, call: ToolCall, result: ToolResult) -> Message:
        text = shortened(result.text, self.tool_env.params.max_output)
        return Message(role="tool", content=text, call_id=call.call_id)

    async def close(self) -> None:
        await self._open.aclose()
