"""Run an episode of verifiers as a core `Env`: its messages and tools to the agent, whole replies back."""

import random
from collections.abc import Iterator, Mapping
from typing import Any

from turnwise.core.errors import EnvironmentFailure
from turnwise.core.messages import Message, ToolCall, system, user
from turnwise.core.protocols import Observation, StepResult
from turnwise.envs.adapters.openenv.observations import ROLES, read_parts
from turnwise.envs.adapters.openenv.runner import read_shown_tools
from turnwise.envs.adapters.openenv.wire import Result
from turnwise.envs.adapters.remote_env import RemoteRunner
from turnwise.envs.runner import MAX_REWARD, TurnOutcome, turn_info
from turnwise.envs.tool_env import TEMPLATE_STYLES, describe_calls, describe_tools
from turnwise.text.truncation import describe_value
from turnwise.tools.call_formats import ParsedCalls, format_call, parse_calls, remove_calls
from turnwise.tools.signature import random_arguments


class VerifiersRunner(RemoteRunner):
    """One episode of `Verifiers`."""

    takes_replies = True

    async def start(self) -> Observation:
        await super().start()
        style = self.remote.params.style
        with self._attribute_errors("start"):
            first = self.remote.answer.observation
            self._tools = read_shown_tools(first)
            messages = self._messages(first, (*ROLES, "assistant"))
            self._words = [word for message in messages for word in message.content.split()]
            calls = describe_calls(self._tools, style) if self._tools else ""
        shown = self._tools if style in TEMPLATE_STYLES else ()
        return Observation(
            messages=(system(calls), *messages) if calls else messages,
            tools=shown,
            tools_in_words=describe_tools(shown, style) if shown else "",
        )

    async def step(self, action: Message) -> StepResult:
        if self._over:
            raise RuntimeError("step after the end of the episode")
        text, parsed = action.content, ParsedCalls()
        if self._tools:
            parsed = parse_calls(text, self.remote.params.style)
        with self._attribute_errors("step"):
            result = await self.remote.send(*self._reply_fields(text, parsed))
            self._turns += 1
            self._over = result.done
            if not result.done and self._turns >= self.env.max_turns:
                raise EnvironmentFailure(
                    f"The environment goes on after {self._turns} turns, the limit that it was given."
                )
            messages = self._messages(result.observation, ROLES)
        return self._result(result, messages, parsed)

    def _reply_fields(self, text: str, parsed: ParsedCalls) -> tuple[str, list[dict[str, Any]]]:
        """Return the text and the calls of a reply, as an endpoint of chat completions would."""
        content = remove_calls(text, self.remote.params.style).strip() if parsed.calls else text
        calls = [
            {"id": call.call_id, "name": _encodable(call.name), "arguments": _encodable(call.arguments)}
            for call in parsed.calls
        ]
        return _encodable(content), calls

    def _result(self, result: Result, messages: tuple[Message, ...], parsed: ParsedCalls) -> StepResult:
        reward, success = self.remote.reward(), self.remote.succeeded()
        truncated = result.done and bool(result.flag("truncated"))
        problem = parsed.problems[0] if parsed.problems and not parsed.calls else ""
        parts = read_parts_of_reward(result.metadata.get("rewards", {})) if result.done else {}
        info = turn_info(TurnOutcome(success=success, problem=problem, parts=parts), None)
        return StepResult(
            messages=messages or (() if result.done else (user("OK."),)),
            reward=reward,
            terminated=result.done and (success or not truncated),
            truncated=truncated and not success,
            success=success,
            invalid=bool(problem),
            info=info | ({"calls": [{"name": call.name, "failed": False} for call in parsed.calls]}),
        )

    def _messages(self, observation: Mapping[str, Any], roles: tuple[str, ...]) -> tuple[Message, ...]:
        listed = observation.get("messages")
        if not isinstance(listed, list):
            raise EnvironmentFailure(f"The environment's messages are {describe_value(listed)}: a list is needed.")
        return tuple(self._read_messages(listed, roles))

    def _read_messages(self, listed: list[Any], roles: tuple[str, ...]) -> Iterator[Message]:
        limit = self.remote.params.max_observation
        for item in listed:
            role = item.get("role") if isinstance(item, dict) else None
            if role not in roles:
                raise EnvironmentFailure(f"A message of the environment is {describe_value(item)}: it has no role.")
            yield Message(
                role=role,
                parts=tuple(read_parts(item.get("content") or "", limit)),
                tool_calls=tuple(map(_read_call, item.get("tool_calls") or ())),
                call_id=str(item.get("tool_call_id") or ""),
            )

    def random_answer(self, rng: random.Random) -> str | None:
        """Return a random call, or words of the prompt."""
        if self._tools and rng.random() < 0.5:
            spec = rng.choice(self._tools)
            return format_call(spec.name, random_arguments(spec, rng, self._words[-50:]), self.remote.params.style)
        return " ".join(rng.sample(self._words, min(len(self._words), 3))) or "OK"


def read_parts_of_reward(parts: Any) -> dict[str, float]:
    """Return the rewards by name. Raises EnvironmentFailure for what is not a number."""
    if not isinstance(parts, dict):
        raise EnvironmentFailure(f"The rewards by name are {describe_value(parts)}: an object is needed.")
    for name, value in parts.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_REWARD:
            raise EnvironmentFailure(f"The reward {name} is {describe_value(value)}: a number is needed.")
    return {name: float(value) for name, value in parts.items()}


def _read_call(call: Any) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise EnvironmentFailure(f"A call in the environment's messages is {describe_value(call)}.")
    return ToolCall(name=function["name"], arguments=str(function.get("arguments")), call_id=str(call.get("id") or ""))


def _encodable(text: str) -> str:
    """Replace unpaired surrogates, which a model can write."""
    return text.encode(errors="replace").decode()
