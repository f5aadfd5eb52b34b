"""Run an environment that follows the `Env` protocol itself, and check what it returns.

A factory makes one environment per episode. A class is one, if its constructor takes the task and a random stream:

    class Echo:
        def __init__(self, task: Task, rng: random.Random) -> None: ...
        async def start(self) -> Observation: ...
        async def step(self, action: Message) -> StepResult: ...
        async def close(self) -> None: ...

The start state is made from `task` alone (`random.Random(task.seed)`): all members of a group start from the same one.
`rng` is the member's own, for everything after the start.
"""

import inspect
import random
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, get_args

from pydantic import BaseModel, create_model

from turnwise.core.errors import EnvironmentFailure, UserError
from turnwise.core.messages import ImagePart, Message, Picture, Role, TextPart, ToolSpec
from turnwise.core.protocols import Env, Observation, StepResult
from turnwise.core.task import Task
from turnwise.envs.class_checks import check_params_class
from turnwise.envs.runner import MAX_REWARD, check_text
from turnwise.envs.text_env import StrictParams
from turnwise.rewards.functions import to_float
from turnwise.text.truncation import describe_value
from turnwise.user_code.source_location import failure_boundary

EnvFactory = Callable[[Task, random.Random], Env]
"""(task, random stream of the member) -> the environment of one episode."""

METHODS = ("start", "step", "close")
RESERVED_INFO = ("calls", "chat_messages", "chat_usage", "summary")
"""Entries of `info` that turnwise writes itself."""


class ProtocolEnvRunner:
    """One episode. Raises EnvironmentFailure if the environment returns something that cannot be trained on."""

    def __init__(self, name: str, env: Env, luck: random.Random) -> None:
        check_methods(name, env)
        self.env, self.luck = env, luck
        self._name = name

    async def start(self) -> Observation:
        with self._attribute_errors("start"):
            opening = await self.env.start()
        self._check(isinstance(opening, Observation), "start", "a tw.Observation", opening)
        self._check_messages(opening.messages, "start")
        self._check(len(opening.messages) > 0, "start", "at least one message", opening.messages)
        self._check(are(ToolSpec, opening.tools), "start", "tools that are tw.ToolSpec", opening.tools)
        self._check(isinstance(opening.picture, Picture | None), "start", "a tw.Picture or None", opening.picture)
        return replace(opening, messages=tuple(opening.messages), tools=tuple(opening.tools))

    async def step(self, action: Message) -> StepResult:
        with self._attribute_errors("step"):
            result = await self.env.step(action)
        self._check(isinstance(result, StepResult), "step", "a tw.StepResult", result)
        self._check_messages(result.messages, "step")
        self._check_info(result.info)
        self._check(isinstance(result.picture, Picture | None), "step", "a tw.Picture or None", result.picture)
        reward = to_float(result.reward)  # not abs(reward) > MAX_REWARD, which NaN passes
        self._check(abs(reward) <= MAX_REWARD, "step", f"a reward of at most {MAX_REWARD:g}", result.reward)
        info = {"success": bool(result.success), **result.info}
        return replace(result, messages=tuple(result.messages), reward=reward, info=info)

    async def close(self) -> None:
        with self._attribute_errors("close"):
            await self.env.close()

    def random_answer(self, rng: random.Random) -> str | None:
        """Return a random reply in the format that the environment reads; None if it has no `random_answer`."""
        make = getattr(self.env, "random_answer", None)
        answer = None if make is None else make(rng)
        check_text(self.env, "random_answer", answer, optional=True)
        return answer

    def _check_messages(self, messages: Any, where: str) -> None:
        self._check(are(Message, messages), where, "a tuple of tw.Message", messages)
        for message in messages:
            self._check(message.role in get_args(Role), where, f"one of the roles {', '.join(get_args(Role))}", message)
            parts = are(TextPart | ImagePart, message.parts)
            valid = parts and all(isinstance(part.text, str) for part in message.parts if isinstance(part, TextPart))
            self._check(valid, where, "messages with parts that are tw.TextPart or tw.Image", message)

    def _check_info(self, info: Any) -> None:
        self._check(isinstance(info, Mapping), "step", "info that is a dict", info)
        for name in RESERVED_INFO:
            self._check(name not in info, "step", f"info without {name!r}, which turnwise writes itself", info)
        rewards, state = info.get("rewards", {}), info.get("state")
        numbers = isinstance(rewards, Mapping) and all(
            isinstance(name, str) and abs(to_float(value)) <= MAX_REWARD for name, value in rewards.items()
        )
        self._check(numbers, "step", "info['rewards'] that are numbers by name", rewards)
        self._check(isinstance(state, str | None), "step", "info['state'] that is a text", state)

    def _check(self, valid: bool, where: str, expected: str, value: Any) -> None:
        if not valid:
            raise EnvironmentFailure(f"{self._name}.{where} returned {describe_value(value)}: return {expected}")

    def _attribute_errors(self, where: str) -> AbstractContextManager[None]:
        return failure_boundary(f"{self._name}.{where}")


def are(kind: Any, values: Any) -> bool:
    """Return whether `values` is a tuple or list of instances of `kind`."""
    return isinstance(values, tuple | list) and all(isinstance(value, kind) for value in values)


def check_factory(factory: Any) -> None:
    """Raise UserError if the factory cannot make environments, as far as that shows before it is called."""
    name = getattr(factory, "__name__", "")
    if not name.isidentifier():
        shown = f"a {name.strip('<>')}" if name else describe_value(factory)
        raise UserError(f"{shown} is not a class or a function with a name: define it with class or def.")
    if isinstance(factory, type):
        check_methods(name, factory)
    try:
        inspect.signature(factory).bind(None, None)
    except (TypeError, ValueError):
        raise UserError(
            f"{name} is not called with (task, rng): let {'its __init__' if isinstance(factory, type) else 'it'} take "
            "a tw.Task and a random.Random."
        ) from None


def check_methods(name: str, env: Any) -> None:
    """Raise UserError if the environment, or its class, lacks one of the protocol's methods."""
    for method in METHODS:
        if not callable(getattr(env, method, None)):
            raise UserError(
                f"{name} is not an environment, since it has no {method}: make it a subclass of TextEnv or ToolEnv, or "
                "give it the methods of tw.Env, which are async start, step and close."
            )
        if not inspect.iscoroutinefunction(getattr(env, method)):
            raise UserError(f"{name}.{method} is not a coroutine: define it with async def.")


def factory_params(factory: Any) -> type[BaseModel]:
    """Return the model of `env.params`: the class's nested `Params`, or one without parameters."""
    params = getattr(factory, "Params", StrictParams)
    check_params_class(factory.__name__, params)
    if issubclass(params, StrictParams):
        return params
    return create_model(f"{factory.__name__}Params", __base__=(params, StrictParams))
