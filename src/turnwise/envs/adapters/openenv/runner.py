"""Run an episode on an OpenEnv server as a core `Env`, in the form that the environment has: tools, chat, or fields."""

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure
from turnwise.core.messages import ContentPart, Message, TextPart, ToolCall, ToolSpec, system, text_parts, user
from turnwise.core.protocols import Observation, StepResult
from turnwise.envs.adapters.openenv.observations import clean, read_parts
from turnwise.envs.adapters.openenv.wire import CALL_TOOL, LIST_TOOLS, RESERVED_NAMES
from turnwise.envs.adapters.remote_env import RemoteRunner
from turnwise.envs.answers import format_answer, invalid_action_line
from turnwise.envs.runner import TurnOutcome, limits_text, turn_info
from turnwise.envs.tool_env import TEMPLATE_STYLES, describe_calls, describe_tools
from turnwise.text.truncation import describe_value, first_line
from turnwise.tools.call_formats import format_call, parse_calls
from turnwise.tools.signature import random_arguments
from turnwise.tools.tool import ToolError
from turnwise.tools.toolbox import describe_unknown_tool, read_arguments

NO_CALL = "No tool call found."
AGENTS_ERRORS = ("tool_not_found", "invalid_args", "execution_error")
"""Types of a tool's errors that the agent reads. Others are failures of the connection to the tool."""
MAX_TOOLS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOutcome:
    """Result of one tool call."""

    parts: tuple[ContentPart, ...]
    failed: bool


class OpenEnvRunner(RemoteRunner):
    """One episode of `OpenEnv`."""

    def __init__(self, env: Any, start_rng: random.Random, seed: int = 0) -> None:
        super().__init__(env, start_rng, seed)
        self._is_chat = False

    async def start(self) -> Observation:
        await asyncio.to_thread(lambda: self.remote.facts)  # known already, unless the process is another one
        opening = await super().start()
        chat = self.remote.chat()
        with self._attribute_errors("start"):
            if self.remote.has_tools:
                return await self._start_with_tools(chat or opening.messages[1:])
            if chat and self.remote.action_spec.is_text:
                self._is_chat = True
                self.takes_replies = not self.remote.answer.observation.get("actions")  # they are answers
                return replace(opening, messages=chat, tools=read_shown_tools(self.remote.answer.observation))
        lines = (self.env.rules(), limits_text(self.env), self.remote.action_spec.describe())
        prompt = system("\n".join(line for line in lines if line))
        return replace(opening, messages=(prompt, *opening.messages[1:]))

    async def _start_with_tools(self, messages: Sequence[Message]) -> Observation:
        first = self.remote.last
        listed = await self.remote.send({"type": LIST_TOOLS})
        self.takes_replies = True
        self._tools, self.remote.last = read_tools(listed.observation.get("tools")), first
        style = self.remote.params.style
        lines = (self.env.rules(), limits_text(self.env), describe_calls(self._tools, style))
        shown = self._tools if style in TEMPLATE_STYLES else ()
        opening = tuple(message for message in messages if message.parts) or (user("Begin."),)
        self._words = [word for message in opening for word in message.content.split()]
        return Observation(
            messages=(system("\n".join(line for line in lines if line)), *opening),
            tools=shown,
            tools_in_words=describe_tools(shown, style) if shown else "",
        )

    async def step(self, action: Message) -> StepResult:
        if self._tools:
            return await self._in_turn(self._call_tools(action.content))
        if self._is_chat:
            return await self._in_turn(self._say(action.content))
        result = await super().step(action)
        return self._mark_truncated(result) if not result.invalid else result

    async def _in_turn(self, running: Any) -> StepResult:
        """Count the turn, and end the episode at the limit of turns."""
        if self._over:
            raise RuntimeError("step after the end of the episode")
        with self._attribute_errors("step"):
            messages, turn, called = await running
        self._turns += 1
        truncated = not turn.over and self._turns >= self.env.max_turns
        self._over = turn.over or truncated
        told = self.remote.answer.flag("invalid") if not turn.problem else None
        return self._mark_truncated(
            StepResult(
                messages=messages or (() if turn.over else (user("OK."),)),
                reward=turn.reward,
                terminated=turn.over,
                truncated=truncated,
                success=turn.success,
                invalid=bool(turn.problem) or bool(told),
                info=turn_info(turn, None) | ({"calls": called} if called else {}),
            )
        )

    def _mark_truncated(self, result: StepResult) -> StepResult:
        """Return the result as truncated if the server says that a limit ended the episode."""
        if result.terminated and not result.success and self.remote.answer.flag("truncated"):
            return replace(result, terminated=False, truncated=True)
        return result

    async def _say(self, text: str) -> tuple[tuple[Message, ...], TurnOutcome, list[Any]]:
        """Send the whole reply as the action."""
        try:
            result = await self.remote.send({self.remote.action_spec.sole: text})
        except ValueError as error:
            line = invalid_action_line(error)
            return (user(line),), TurnOutcome(problem=line), []
        text = self.remote.describe()
        messages = self.remote.chat() or ((user(text),) if text else ())
        turn = TurnOutcome(reward=self.remote.reward(), over=result.done, success=self.remote.succeeded())
        return messages, turn, []

    async def _call_tools(self, text: str) -> tuple[tuple[Message, ...], TurnOutcome, list[Any]]:
        """Run the calls of a reply, one after the other, until one ends the episode."""
        parsed = parse_calls(text, self.remote.params.style)
        problems = parsed.problems or (() if parsed.calls else (NO_CALL,))
        messages, called, reward, over = list[Message](), list[dict[str, Any]](), 0.0, False
        for call in parsed.calls:
            outcome, call_reward = await self._call(call)
            reward, over = reward + call_reward, self.remote.answer.done
            messages.append(Message(role="tool", parts=outcome.parts, call_id=call.call_id))
            called.append({"name": call.name, "failed": outcome.failed})
            if over:
                break
        messages += [user(problem) for problem in problems]
        success = over and self.remote.succeeded()
        problem = "" if parsed.calls else problems[0]
        return tuple(messages), TurnOutcome(reward=reward, over=over, success=success, problem=problem), called

    async def _call(self, call: ToolCall) -> tuple[CallOutcome, float]:
        """Return the result of a call and its reward. A call that the server has not seen earns none."""
        try:
            specs = {spec.name: spec for spec in self._tools}
            if call.name not in specs:
                raise ToolError(describe_unknown_tool(call.name, specs))
            arguments = read_arguments(call.arguments, specs[call.name])
            result = await self.remote.send({"type": CALL_TOOL, "tool_name": call.name, "arguments": arguments})
        except (ToolError, ValueError) as error:
            return CallOutcome(parts=text_parts(f"Error: {first_line(error)}"), failed=True), 0.0
        outcome = read_call_result(result.observation, self.remote.params.max_observation)
        return outcome, self.remote.reward()

    def random_answer(self, rng: random.Random) -> str | None:
        """Return a random reply in the form of the environment."""
        if self._tools:
            spec = rng.choice(self._tools)
            return format_call(spec.name, random_arguments(spec, rng, self._words[-50:]), self.remote.params.style)
        action = self.remote.random_action(rng)
        return None if action is None else format_answer([action])


def read_tools(listed: Any) -> tuple[ToolSpec, ...]:
    """Return the tools of a list, checked. Raises EnvironmentFailure."""
    if not isinstance(listed, list) or not 0 < len(listed) <= MAX_TOOLS:
        raise EnvironmentFailure(
            f"The server's list of tools is {describe_value(listed)}: 1 to {MAX_TOOLS} are needed."
        )
    return tuple(_read_tool(tool) for tool in listed)


def read_shown_tools(observation: Mapping[str, Any]) -> tuple[ToolSpec, ...]:
    """Return the tools that an observation lists for the chat template, if any; replies call them."""
    listed = observation.get("tools")
    if not listed:
        return ()
    return read_tools([tool.get("function") for tool in listed] if _are_objects(listed) else listed)


def _are_objects(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, dict) for value in values)


def _read_tool(tool: Any) -> ToolSpec:
    """Return a tool. OpenEnv's steps call its schema input_schema, MCP inputSchema, chat completions parameters."""
    name = tool.get("name") if isinstance(tool, dict) else None
    if not isinstance(name, str) or not name or name in RESERVED_NAMES:
        raise EnvironmentFailure(f"A tool of the server has the name {describe_value(name)}, which cannot be called.")
    schema = tool.get("input_schema") or tool.get("inputSchema") or tool.get("parameters") or {}
    if not isinstance(schema, dict):
        raise EnvironmentFailure(f"The schema of the tool {name} is {describe_value(schema)}: an object is needed.")
    return ToolSpec(name=name, description=str(tool.get("description") or ""), parameters=schema)


def read_call_result(observation: Mapping[str, Any], limit: int) -> CallOutcome:
    """Return what the agent sees of a call. Raises InfrastructureFailure if the tool could not be reached."""
    error, result = observation.get("error"), observation.get("result")
    if isinstance(error, dict):
        kind, text = error.get("error_type"), clean(str(error.get("message", "")), limit)
        if kind not in AGENTS_ERRORS:
            raise InfrastructureFailure(
                f"The server could not run a tool ({first_line(str(kind))}): {first_line(text)}"
            )
        return CallOutcome(parts=text_parts(f"Error: {text}"), failed=True)
    if isinstance(result, dict) and isinstance(result.get("content"), list):
        parts = tuple(read_parts(result["content"], limit))
        return CallOutcome(parts=parts or (TextPart(text="OK."),), failed=bool(result.get("is_error")))
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    return CallOutcome(parts=text_parts(clean(text, limit) or "OK."), failed=False)
