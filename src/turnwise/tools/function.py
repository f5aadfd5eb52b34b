"""A Python function as a tool: its types and its docstring are all that is needed.

    @tool(pure=True)
    def weather(city: str, days: int = 1) -> str:
        \"\"\"The forecast for a city.\"\"\"
        if city not in KNOWN: raise ToolError(f"no city {city}")     # the agent's own mistake
        return fetch(city, days)                                     # what fails here is not the agent's fault

A parameter called `state` is not the model's to give: it is what the environment shares with its tools.
A ToolError, ValueError, LookupError or ArithmeticError is the agent's mistake and told to it; anything else is a
failure of ours: the call is tried again, then the episode is run again.
"""

import asyncio
import inspect
import json
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from turnwise.config.keys import read_options
from turnwise.core.blocking import Blocked, interruptible
from turnwise.core.errors import FOREIGN_ERRORS, InfrastructureFailure, UserError
from turnwise.core.messages import ToolSpec
from turnwise.core.source_location import place_in
from turnwise.tools.tool import ToolBug, ToolError, ToolResult, ToolRules

AGENTS_FAULT = (ValueError, LookupError, ArithmeticError)
RULES, STATE = "__turnwise_rules__", "state"


def tool(function: Callable[..., Any] | None = None, **rules: Any) -> Any:
    """Marks a function with the rules of `ToolRules`; a plain function is a tool too, by the default rules."""

    def mark(marked: Callable[..., Any]) -> Callable[..., Any]:
        setattr(marked, RULES, read_options(ToolRules, rules, f"@tool of {marked.__name__}"))
        return marked

    return mark if function is None else mark(function)


@dataclass(frozen=True, slots=True)
class FunctionTool:
    function: Callable[..., Any]
    spec: ToolSpec
    rules: ToolRules
    arguments: type[BaseModel] = field(repr=False)
    takes_state: bool = False
    shared: Mapping[str, Any] = field(default_factory=dict)
    """What an episode's environment gives in every call."""

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        try:
            model = self.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            raise ToolError(_complaint(error, self.arguments)) from error
        return {name: getattr(model, name) for name in model.model_fields_set}

    @asynccontextmanager
    async def open(self, seed: int, state: Any) -> AsyncIterator["FunctionTool"]:
        """It has no state of its own."""
        yield replace(self, shared={STATE: state}) if self.takes_state else self

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        called = partial(self.function, **arguments, **self.shared)
        try:
            if inspect.iscoroutinefunction(self.function):
                given = await interruptible(called(), self.rules.timeout_s, "it")
            else:
                given = await _in_thread(called)
        except (ToolError, UserError, InfrastructureFailure, Blocked):
            raise
        except AGENTS_FAULT as error:
            raise ToolError(f"{type(error).__name__}: {error}") from error
        except FOREIGN_ERRORS as error:
            raise _bug(error, self.function) from error
        return given if isinstance(given, ToolResult) else ToolResult(text=_text(given))


def from_function(function: Callable[..., Any]) -> FunctionTool:
    """The schema comes from the types, the description from the docstring."""
    name = getattr(function, "__name__", type(function).__name__)
    if isinstance(function, type) or not hasattr(function, "__name__"):
        raise UserError(
            f"{name} is {'a class' if isinstance(function, type) else 'an object'} and no function: write a function; "
            "what an episode keeps is given to a parameter called state, by the tool_state of a ToolEnv"
        )
    description = inspect.cleandoc(function.__doc__ or "")
    if not description:
        raise UserError(f"the tool {name} has no docstring: write one line that tells the model what it is for")
    arguments = _arguments(function)
    schema = arguments.model_json_schema()
    schema.pop("title", None)
    spec = ToolSpec(name=name, description=description, parameters=schema)
    rules, takes_state = getattr(function, RULES, ToolRules()), STATE in inspect.signature(function).parameters
    if takes_state and rules.pure:
        raise UserError(f"the tool {name} depends on its state, so it is not pure: leave that out")
    return FunctionTool(function, spec, rules, arguments, takes_state)


def _arguments(function: Callable[..., Any]) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError as error:
        raise UserError(f"the tool {function.__name__} has a type that cannot be read: {error}") from error
    for parameter in signature.parameters.values():
        if parameter.name == STATE:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise UserError(f"the tool {function.__name__} takes {parameter}: give it named parameters only")
        if parameter.annotation is parameter.empty:
            raise UserError(f"the tool {function.__name__} has no type for {parameter.name}: annotate it")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (parameter.annotation, default)
    return create_model(function.__name__, __config__=ConfigDict(extra="forbid"), **fields)


def _complaint(error: ValidationError, arguments: type[BaseModel]) -> str:
    first = error.errors()[0]
    name = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        return f"no argument {name}: there are {', '.join(arguments.model_fields) or 'none'}"
    if first["type"] == "missing":
        return f"the argument {name} is missing"
    return f"{name}: {first['msg']}"


def _bug(error: BaseException, function: Callable[..., Any]) -> ToolBug:
    error = error.error if isinstance(error, _Ended) else error
    said = " ".join(str(error).split())
    return ToolBug(": ".join([place_in(error, function), type(error).__name__, *[said] * bool(said)]))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(value)


class _Ended(Exception):
    """What ended a tool's thread and may not be raised outside of it: SystemExit would end the run."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


async def _in_thread(function: Callable[[], Any]) -> Any:
    """For functions that are not async: one that hangs keeps its thread, and neither others nor the end wait for it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(error: BaseException | None, value: Any) -> None:
        if not future.done():
            future.set_exception(error) if error is not None else future.set_result(value)

    def work() -> None:
        error, value = None, None
        try:
            value = function()
        except BaseException as raised:
            passes = isinstance(raised, Exception) and not isinstance(raised, StopIteration)  # no future takes that one
            error = raised if passes else _Ended(raised)
        with suppress(RuntimeError):  # the loop has ended, and with it whoever waited
            loop.call_soon_threadsafe(settle, error, value)

    threading.Thread(target=work, name="tool", daemon=True).start()
    return await future
