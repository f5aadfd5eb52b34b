"""Python functions as tools: type hints and argument docs become the schema, the docstring the description.

    @tool(pure=True)
    def weather(city: str, days: int = 1) -> str:
        \"\"\"The forecast for a city.\"\"\"
        if city not in KNOWN: raise ToolError(f"no city {city}")     # the agent's mistake
        return fetch(city, days)                                     # a failure here is not the agent's fault

A parameter called `state` is hidden from the model: it receives what the environment shares with its tools.
ToolError, ValueError, LookupError and ArithmeticError are the agent's mistakes, shown to the agent. Anything else is an
infrastructure failure: the call is retried, then the episode.
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

from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter, ValidationError, create_model

from turnwise.concurrency.blocking import EventLoopBlocked, interruptible
from turnwise.core.errors import FOREIGN_ERRORS, ImageError, InfrastructureFailure, UserError
from turnwise.core.messages import ImagePart, ToolSpec
from turnwise.pictures.image import is_image
from turnwise.settings.options import read_options
from turnwise.tools.docstrings import split_docstring
from turnwise.tools.tool import ToolBug, ToolError, ToolResult, ToolRules
from turnwise.user_code.source_location import error_location, source_location

AGENTS_FAULT = (ValueError, LookupError, ArithmeticError)
RULES, STATE = "__turnwise_rules__", "state"


def tool(function: Callable[..., Any] | None = None, **rules: Any) -> Any:
    """Set the rules of a function that is used as a tool. Undecorated functions are tools with the default rules.

    `@tool`, or with rules `@tool(timeout_s=10, concurrency=64, retries=2, pure=False)`: seconds per call, simultaneous
    calls over all episodes, retries after a failure that is not the agent's fault, and whether results are cached and
    shared because equal arguments give equal results.
    """

    def attach(function: Callable[..., Any]) -> Callable[..., Any]:
        setattr(function, RULES, read_options(ToolRules, rules, f"@tool of {function.__name__}"))
        return function

    return attach if function is None else attach(function)


@dataclass(frozen=True, slots=True)
class FunctionTool:
    function: Callable[..., Any]
    spec: ToolSpec
    rules: ToolRules
    arguments: type[BaseModel] = field(repr=False)
    takes_state: bool = False
    shared: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments that the environment adds to every call of an episode."""

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        try:
            model = self.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            raise ToolError(_describe(error, self.arguments)) from error
        return {name: getattr(model, name) for name in model.model_fields_set}

    @asynccontextmanager
    async def open(self, seed: int, state: Any) -> AsyncIterator["FunctionTool"]:
        yield replace(self, shared={STATE: state}) if self.takes_state else self

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        bound = partial(self.function, **arguments, **self.shared)
        try:
            if inspect.iscoroutinefunction(self.function):
                value = await interruptible(bound(), self.rules.timeout_s, "it")
            else:
                value = await _run_in_thread(bound)
        except ImageError as error:  # a UserError, which would stop the run
            raise _bug(error, self.function) from error
        except (ToolError, UserError, InfrastructureFailure, EventLoopBlocked):
            raise
        except AGENTS_FAULT as error:
            raise ToolError(f"{type(error).__name__}: {error}") from error
        except FOREIGN_ERRORS as error:
            raise _bug(error, self.function) from error
        try:
            return _to_result(value)
        except UnreadableResultError as error:
            raise ToolBug(f"{source_location(self.function)}: {error}") from error


def from_function(function: Callable[..., Any]) -> FunctionTool:
    """Create a tool from a function with type hints and a docstring."""
    name = getattr(function, "__name__", type(function).__name__)
    if isinstance(function, type) or not hasattr(function, "__name__"):
        raise UserError(
            f"{name} is {'a class' if isinstance(function, type) else 'an object'}, not a function: write a function. "
            "For state within an episode, take a parameter called state and return its value from ToolEnv.tool_state."
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UserError(f"The tool {name} is a generator: return a value instead of yielding.")
    docstring = inspect.cleandoc(function.__doc__ or "")
    if not docstring:
        raise UserError(f"The tool {name} has no docstring: write one that describes the tool for the model.")
    arguments = _arguments_model(function)
    schema = arguments.model_json_schema()
    schema.pop("title", None)
    description, texts = split_docstring(docstring, arguments.model_fields)
    for argument, text in texts.items():
        schema["properties"][argument].setdefault("description", text)
    spec = ToolSpec(name=name, description=description, parameters=schema)
    rules, takes_state = getattr(function, RULES, ToolRules()), STATE in inspect.signature(function).parameters
    if takes_state and rules.pure:
        raise UserError(f"The tool {name} takes state, so it cannot be pure: remove pure.")
    return FunctionTool(function, spec, rules, arguments, takes_state)


def _arguments_model(function: Callable[..., Any]) -> type[BaseModel]:
    """Pydantic model of the parameters that the model sets."""
    fields: dict[str, Any] = {}
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError as error:
        raise UserError(
            f"The tool {function.__name__} has an unknown type in its signature: {error}. Import it, or use another."
        ) from error
    for parameter in signature.parameters.values():
        if parameter.name == STATE:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise UserError(f"The tool {function.__name__} takes {parameter}: use named parameters only.")
        if parameter.annotation is parameter.empty:
            raise UserError(f"The tool {function.__name__} has no type for {parameter.name}: annotate it.")
        default = ... if parameter.default is parameter.empty else parameter.default
        _check_type(function, parameter)
        fields[parameter.name] = (parameter.annotation, default)
    return create_model(function.__name__, __config__=ConfigDict(extra="forbid"), **fields)


def _check_type(function: Callable[..., Any], parameter: inspect.Parameter) -> None:
    """Raise UserError if a model cannot write values of the parameter's type."""
    try:
        TypeAdapter(parameter.annotation).json_schema()
    except PydanticUserError as error:
        shown = inspect.formatannotation(parameter.annotation)
        raise UserError(
            f"The tool {function.__name__}: a model cannot write a {shown} for {parameter.name}: annotate it with str, "
            "int, float, bool, list or dict, and convert it inside."
        ) from error


def _describe(error: ValidationError, arguments: type[BaseModel]) -> str:
    """First validation error, in a few words for the agent."""
    first = error.errors()[0]
    name = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        return f"no argument {name}: there are {', '.join(arguments.model_fields) or 'none'}"
    if first["type"] == "missing":
        return f"the argument {name} is missing"
    return f"{name}: {first['msg']}"


def _bug(error: BaseException, function: Callable[..., Any]) -> ToolBug:
    error = error.error if isinstance(error, _ThreadExit) else error
    message = " ".join(str(error).split())
    return ToolBug(": ".join([error_location(error, function), type(error).__name__, *[message] * bool(message)]))


def _to_result(value: Any) -> ToolResult:
    """Return what the agent sees of a value: images after the text, other values as JSON or text."""
    if isinstance(value, ToolResult):
        return value
    items = value if isinstance(value, list | tuple) else [value]
    images = tuple(item for item in items if isinstance(item, ImagePart))
    if not images:
        return ToolResult(text=_to_text(value))
    texts = [_to_text(item) for item in items if not isinstance(item, ImagePart)]
    return ToolResult(text="\n".join(texts), images=images)


class UnreadableResultError(Exception):
    """A result would lose its content as text."""


def _to_text(value: Any) -> str:
    """Return the value as JSON, or as Python prints it. Raises UnreadableResultError if that loses its content."""
    if isinstance(value, str):
        return value
    others: list[Any] = []

    def replace_other(item: Any) -> None:
        if is_image(item):
            raise UnreadableResultError(
                f"it returned a value of type {type(item).__name__}, which the agent would not see as an image: "
                "return a tw.Image made of it, or a list of texts and tw.Image"
            )
        others.append(item)

    try:
        text = json.dumps(value, ensure_ascii=False, default=replace_other)
    except (TypeError, ValueError):
        return str(value)
    if unprintable := [type(item).__name__ for item in others if _is_printed_as_address(item)]:
        raise UnreadableResultError(
            f"it returned a value of type {unprintable[0]}, of which the agent would read an address in memory: return "
            "a text, a number, or a list or dict of them"
        )
    return str(value) if others else text


def _is_printed_as_address(value: Any) -> bool:
    return type(value).__repr__ is object.__repr__ and type(value).__str__ is object.__str__


class _ThreadExit(Exception):
    """Wraps an exception that must not leave a tool's thread: a SystemExit would end the run."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


async def _run_in_thread(function: Callable[[], Any]) -> Any:
    """Run a synchronous function in a daemon thread of its own, so that one that hangs delays nothing else."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def set_outcome(error: BaseException | None, value: Any) -> None:
        if not future.done():
            future.set_exception(error) if error is not None else future.set_result(value)

    def work() -> None:
        error, value = None, None
        try:
            value = function()
        except BaseException as raised:
            # a future rejects StopIteration
            allowed = isinstance(raised, Exception) and not isinstance(raised, StopIteration)
            error = raised if allowed else _ThreadExit(raised)
        with suppress(RuntimeError):  # the event loop has closed, so nothing waits for the result
            loop.call_soon_threadsafe(set_outcome, error, value)

    threading.Thread(target=work, name="tool", daemon=True).start()
    return await future
