"""Runs a `ToolEnv` as the core's `Env`: calls are run and told, answers are judged."""

import json
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from turnwise.core.messages import Message, ToolSpec, system, user
from turnwise.core.protocols import Observation, StepResult
from turnwise.envs.runner import TextEnvRunner
from turnwise.tools.box import ToolBox, ToolHands
from turnwise.tools.formats import Calls, read_calls
from turnwise.tools.shorten import shorten
from turnwise.tools.tool import ToolResult

TOLD_BY_TEMPLATE = ("hermes", "llama", "mistral")
"""Styles of models whose own chat template tells them of their tools, in the words that they were trained on."""
NONE_LEFT = "No tool calls left: answer now."

_boxes: dict[tuple[type, str], ToolBox] = {}


def box_of(env: Any) -> ToolBox:
    """Shared by all episodes of equal parameters: limits and kept answers are theirs together."""
    key = (type(env), env.params.model_dump_json())
    if key not in _boxes:
        _boxes[key] = ToolBox(type(env).make_tools(env.params))
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

    async def start(self) -> Observation:
        opening = await super().start()
        self._hands = await self._open.enter_async_context(self._box.open(self._seed, self.tool_env.tool_state()))
        specs = self._box.specs
        if self.tool_env.params.style in TOLD_BY_TEMPLATE:
            return Observation(messages=opening.messages, tools=specs, picture=opening.picture)
        told = system(f"{opening.messages[0].content}\n{tools_text(specs, self.tool_env.params.style)}")
        return Observation(messages=(told, *opening.messages[1:]), picture=opening.picture)

    async def step(self, action: Message) -> StepResult:
        calls = read_calls(action.content, self.tool_env.params.style)
        return await self._tool_turn(calls) if calls.attempted else await super().step(action)

    async def _tool_turn(self, calls: Calls) -> StepResult:
        if self._hands is None or self._over:
            raise RuntimeError("step before start, or after the end of the episode")
        left = self.tool_env.params.max_tool_calls - self._calls
        run = calls.calls[: max(0, left)]
        results = await self._hands.call_all(run)
        self._calls += len(run)
        self._turns += 1
        over = any(result.over for result in results)
        self._over = over or self._turns >= self.env.max_turns
        messages = [*map(self._told, run, results), *(user(problem) for problem in calls.problems)]
        if not over and (len(run) < len(calls.calls) or left <= len(run)):
            messages.append(user(NONE_LEFT))
        return StepResult(
            messages=tuple(messages),
            reward=sum(result.reward for result in results),
            terminated=over,
            truncated=self._over and not over,
            success=any(result.success for result in results),
            invalid=not calls.calls,
            info={
                "actions": [],
                "success": any(result.success for result in results),
                "calls": [
                    {"name": call.name, "failed": result.failed} for call, result in zip(run, results, strict=True)
                ],
            },
            picture=self.env.draw(),
        )

    def _told(self, call: object, result: ToolResult) -> Message:
        text = shorten(result.text, self.tool_env.params.max_output)
        return Message(role="tool", content=text, call_id=getattr(call, "call_id", ""))

    async def close(self) -> None:
        await self._open.aclose()


def tools_text(specs: Sequence[ToolSpec], style: str) -> str:
    """For models whose template says nothing of tools."""
    if style == "python":
        return "Code in a block ```python ... ``` is run, and you see what it prints. Answer when you know."
    lines = [f"- {spec.name}({', '.join(_properties(spec))}): {spec.description}" for spec in specs]
    return "\n".join(["Tools:", *lines, f"Call: {_example(specs[0])}."]) if specs else ""


def _properties(spec: ToolSpec) -> dict[str, Any]:
    return dict(spec.parameters.get("properties", {}))


def _example(spec: ToolSpec) -> str:
    names = list(_properties(spec))
    alone = len(names) == 1 and _properties(spec)[names[0]].get("type") == "string"
    return f"<call>{spec.name} {names[0].upper() if alone else json.dumps(dict.fromkeys(names, '...'))}</call>"
