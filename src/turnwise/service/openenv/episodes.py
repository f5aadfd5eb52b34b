"""The episodes of one session, one after the other: start, step, call tools, and what a failure of them means."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, UserError
from turnwise.core.messages import ToolSpec, assistant
from turnwise.core.protocols import Observation, StepResult
from turnwise.core.task import Task
from turnwise.engine.openai.messages import tools_json
from turnwise.envs.answers import format_answer, read_answer
from turnwise.envs.seeds import FIRST_SEED
from turnwise.envs.spec import EnvRunner
from turnwise.envs.tool_env import ToolEnvRunner
from turnwise.rollout.failures import creation_boundary
from turnwise.rollout.held_env import HeldEnv
from turnwise.service.openenv.served_env import ServedEnv
from turnwise.service.openenv.wire import (
    CALL_TOOL,
    EXECUTION_ERROR,
    INVALID_ARGS,
    LIST_TOOLS,
    RESERVED_NAMES,
    SESSION_ERROR,
    TOOL_NOT_FOUND,
    ProtocolError,
    ResetArguments,
    StepReply,
    TextAction,
    ToolAction,
    chat_json,
    invalid,
    tool_content,
    validate,
)
from turnwise.text.truncation import first_line
from turnwise.tools.call_formats import format_call, parse_calls

log = logging.getLogger(__name__)

ANSWER = "answer"
"""Tool that gives the final answer of an environment with tools."""
CODE_OF_TAG = "\\u003c"
"""The character < in JSON."""
CLOSE_S = 10.0
STEP_SETTING = "--step-seconds"
Result = TypeVar("Result")
_reported: set[str] = set()


class Episodes:
    """The environment of one session."""

    def __init__(self, served: ServedEnv, step_s: float) -> None:
        self._served, self._step_s = served, step_s
        self._held: HeldEnv[EnvRunner] | None = None
        self._task: Task | None = None
        self._episode_id: str | None = None
        self._steps = 0
        self._over = False
        self._lock = asyncio.Lock()
        """Requests of a session may arrive on its socket and over HTTP."""

    async def reset(self, data: Any) -> StepReply:
        """Start another episode."""
        arguments = validate(ResetArguments, data)
        async with self._lock:
            opening = await self._start(arguments)
        if not self._served.calls_tools:
            tools = {"tools": tools_json(opening.tools)} if opening.tools else {}
            return StepReply(observation={"messages": chat_json(opening.messages), **tools})
        shown = [message for message in opening.messages if message.role != "system"]  # tools say how they are called
        return StepReply(observation={"messages": chat_json(shown)})

    async def step(self, data: Any) -> StepReply:
        """Run an action of the running episode."""
        async with self._lock:
            if not self._served.calls_tools:
                action = validate(TextAction, data)
                result = await self._step(action.message)
                return self._reply(result, {"messages": chat_json(result.messages)})
            call = validate(ToolAction, data)
            if call.type == LIST_TOOLS:
                return StepReply(observation={"tools": await self._describe_tools()})
            if call.type != CALL_TOOL:
                raise invalid("type", f"must be {CALL_TOOL} or {LIST_TOOLS}")
            return await self._call(call.tool_name, call.arguments)

    async def list_tools(self) -> list[dict[str, Any]]:
        """Return the tools of the episode. A session without one gets the first training task."""
        async with self._lock:
            return await self._describe_tools()

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> StepReply:
        """Call a tool. A session without an episode gets the first training task."""
        async with self._lock:
            await self._ensure_started()
            return await self._call(name, arguments)

    def state(self) -> dict[str, Any]:
        task = self._task
        return {
            "episode_id": self._episode_id,
            "step_count": self._steps,
            "split": task and task.split,
            "index": task and task.seed - FIRST_SEED[task.split],
        }

    async def start_first(self) -> None:
        """Start the first training task if there is no episode, for requests outside of a session."""
        async with self._lock:
            await self._ensure_started()

    async def close(self) -> None:
        """Release the episode. Never raises: its session is over."""
        held, self._held = self._held, None
        if held is not None:
            with suppress(UserError, InfrastructureFailure, EnvironmentFailure):
                await held.close()

    async def _ensure_started(self) -> None:
        if self._held is None:
            await self._start(ResetArguments(index=0))

    async def _start(self, arguments: ResetArguments) -> Observation:
        await self.close()
        task = self._served.choose_task(arguments)
        self._task, self._episode_id = task, arguments.episode_id
        self._steps, self._over = 0, False
        return await self._run(self._open(task))

    async def _open(self, task: Task) -> tuple[Observation, float]:
        with creation_boundary():
            runner = self._served.make(task, self._episode_id)
        self._held = held = HeldEnv(
            runner, timeout_s=self._step_s, close_s=CLOSE_S, setting=STEP_SETTING, per_call=True
        )
        return await held.start()

    async def _step(self, text: str) -> StepResult:
        if self._held is None or self._over:
            state = "The episode is over" if self._over else "There is no episode"
            raise ProtocolError(EXECUTION_ERROR, f"{state}: call reset.")
        result = await self._run(self._held.step(assistant(text)))
        self._steps += 1
        self._over = result.over
        return result

    async def _run(self, work: Awaitable[tuple[Result, float]]) -> Result:
        """Await the environment. After a failure there is no episode, since its state is not known."""
        try:
            result, _ = await work
            return result
        except (UserError, InfrastructureFailure) as error:
            await self.close()
            raise self._failure(SESSION_ERROR, str(error)) from error
        except EnvironmentFailure as error:
            await self.close()
            raise self._failure(EXECUTION_ERROR, str(error)) from error

    def _failure(self, code: str, message: str) -> ProtocolError:
        """Return the error, and log it once."""
        if message not in _reported and len(_reported) < 100:
            _reported.add(message)
            log.warning("%s: %s (reported once)", self._served.spec.name, first_line(message))
        return ProtocolError(code, message)

    def _reply(self, result: StepResult, observation: Mapping[str, Any]) -> StepReply:
        flags = {
            "success": result.success,
            "terminated": result.terminated,
            "truncated": result.truncated,
            "invalid": result.invalid,
        }
        return StepReply(observation=observation, reward=result.reward, done=result.over, metadata=flags)

    async def _describe_tools(self) -> list[dict[str, Any]]:
        await self._ensure_started()
        return [
            {"name": spec.name, "description": spec.description, "input_schema": dict(spec.parameters)}
            for spec in self._specs()
        ]

    def _specs(self) -> tuple[ToolSpec, ...]:
        """Return the tools that the agent can call now; the last one answers, if the environment takes answers."""
        runner = self._tool_runner()
        names = [spec.name for spec in runner.tools]
        return (*runner.tools, answer_spec(names)) if runner.tool_env.answers else runner.tools

    def _tool_runner(self) -> ToolEnvRunner:
        runner = self._held and self._held.env
        if not isinstance(runner, ToolEnvRunner):
            raise ProtocolError(EXECUTION_ERROR, "There is no episode: call reset.")
        return runner

    async def _call(self, name: str, arguments: dict[str, Any]) -> StepReply:
        """Call a tool by writing the reply that calls it, as an agent would."""
        env, specs = self._tool_runner().tool_env, {spec.name: spec for spec in self._specs()}
        if name not in specs:
            return _tool_error(name, TOOL_NOT_FOUND, f"There is no tool {name!r}: use {', '.join(specs)}.")
        is_answer = env.answers and name == next(reversed(specs))
        text = write_answer(arguments) if is_answer else write_call(name, arguments, env.params.style)
        if text is None:
            return _tool_error(name, INVALID_ARGS, f"The arguments of {name} cannot be written as a call.")
        result = await self._step(text)
        called = result.info.get("calls", [])
        failed = any(call["failed"] for call in called) if called else result.invalid
        content = tool_content(result.messages)
        shown = {
            "content": content,
            "data": "\n".join(part["text"] for part in content if "text" in part),
            "is_error": failed,
        }
        return self._reply(result, {"tool_name": name, "result": shown, "error": None})


def answer_spec(taken: list[str]) -> ToolSpec:
    """Return the tool of the final answer, under a name that no other tool has."""
    name = ANSWER
    while name in (*taken, *RESERVED_NAMES):
        name = f"final_{name}"
    schema = {"type": "object", "properties": {ANSWER: {"type": "string"}}, "required": [ANSWER]}
    return ToolSpec(name=name, description="Give the final answer.", parameters=schema)


def write_answer(arguments: Mapping[str, Any]) -> str | None:
    """Return the reply with the answer; None if it is not one text that is read back unchanged."""
    text = arguments.get(ANSWER)
    if not isinstance(text, str) or len(arguments) != 1:
        return None
    reply = format_answer([text])
    return reply if read_answer(reply, several=False).actions == (text.strip(),) else None


def write_call(name: str, arguments: Mapping[str, Any], style: str) -> str | None:
    """Return the reply that calls the tool; None if these arguments cannot be written in the style.

    No argument can contain another call: there is no tag within JSON without a <, which is escaped.
    """
    if style != "python":
        head, _, tail = format_call(name, {}, style).rpartition("{}")
        return f"{head}{json.dumps(dict(arguments)).replace('<', CODE_OF_TAG)}{tail}"
    code = arguments.get("code")
    if not isinstance(code, str) or len(arguments) != 1:
        return None
    reply = format_call(name, arguments, style)
    parsed = [json.loads(call.arguments)["code"].rstrip() for call in parse_calls(reply, style).calls]
    return reply if parsed == [code.rstrip()] else None


def _tool_error(name: str, kind: str, message: str) -> StepReply:
    error = {"error_type": kind, "message": message}
    return StepReply(observation={"tool_name": name, "result": None, "error": error})
