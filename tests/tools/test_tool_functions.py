"""Function tools: schema, validation, retries, caching, and errors attributed to agent or tool."""

import asyncio
import functools
import io
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest

from turnwise.concurrency.blocking import allow_interrupts
from turnwise.core.errors import InfrastructureFailure, UserError
from turnwise.core.messages import ToolCall
from turnwise.pictures.image import Image
from turnwise.tools.function import from_function, tool
from turnwise.tools.tool import ToolError, ToolResult
from turnwise.tools.toolbox import ToolBox


def add(a: int, b: int = 2) -> int:
    """The sum of two numbers."""
    return a + b


def weather(city: str, unit: Literal["C", "F"] = "C") -> dict[str, Any]:
    """The weather of a city."""
    if city != "Rome":
        raise ToolError(f"no city {city}")
    return {"degrees": 20, "unit": unit}


def upper(text: str) -> str:
    """A text in capitals."""
    return text.upper()


def call(name: str, arguments: str = "{}") -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


def answers(functions: list[Callable[..., Any]], *calls: ToolCall) -> list[ToolResult]:
    async def run() -> list[ToolResult]:
        async with ToolBox([from_function(each) for each in functions]).open(0) as tools:
            return await tools.call_all(calls)

    return asyncio.run(run())


def test_schema_comes_from_types_and_docstring() -> None:
    spec = from_function(weather).spec
    assert (spec.name, spec.description) == ("weather", "The weather of a city.")
    assert spec.parameters["required"] == ["city"]
    assert spec.parameters["properties"]["unit"]["enum"] == ["C", "F"]
    assert spec.parameters["properties"]["city"]["type"] == "string"


def test_call_all_returns_results_in_order() -> None:
    found = answers(
        [add, weather], call("add", '{"a": 1}'), call("weather", '{"city": "Rome"}'), call("add", '{"a":5,"b":-5}')
    )
    assert [each.text for each in found] == ["3", '{"degrees": 20, "unit": "C"}', "0"]
    assert not any(each.failed for each in found)


def test_images_of_a_function_come_after_its_text() -> None:
    pytest.importorskip("PIL")
    image = Image(np.zeros((2, 2, 3), np.uint8))

    def photo(several: bool) -> Any:
        """Take a photo."""
        return ["one", image, {"two": 2}] if several else image

    async def take(several: bool) -> ToolResult:
        async with ToolBox([from_function(photo)]).open(0) as tools:
            return await tools.call(call("photo", json.dumps({"several": several})))

    assert asyncio.run(take(True)) == ToolResult(text='one\n{"two": 2}', images=(image,))
    assert asyncio.run(take(False)) == ToolResult(text="", images=(image,))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (call("ad", "{}"), "There is no tool 'ad'. Did you mean add?"),
        (call("zzz", "{}"), "There is no tool 'zzz'. There are: add, weather, upper."),
        (call("add", '{"a": '), "the arguments are not valid JSON"),
        (call("add", "[1]"), "the arguments must be an object"),
        (call("add", "[" * 100_000), "the arguments are not valid JSON"),
        (call("add", "{}"), "add: the argument a is missing"),
        (call("add", '{"a": "x"}'), "add: a: Input should be a valid integer"),
        (call("add", '{"a": 1, "c": 1}'), "add: no argument c: there are a, b"),
        (call("weather", '{"city": "Rome", "unit": "K"}'), "weather: unit: Input should be 'C' or 'F'"),
        (call("weather", '{"city": "Atlantis"}'), "no city Atlantis"),
        (call("weather", r'{"city": "Rome \ud800"}'), "weather: the arguments contain "),
        (call("weather", r'{"ci\udfffty": "Rome"}'), "weather: the arguments contain "),
        (call("weather", r'{"city": ["R", {"o": "\u0000"}]}'), "weather: the arguments contain a null character"),
        (call("upper", "Rome \ud800"), "upper: the arguments contain "),
    ],
)
def test_agent_mistakes_are_described_briefly(given: ToolCall, said: str) -> None:
    (found,) = answers([add, weather, upper], given)
    assert found.failed and said in found.text and len(found.text) < 200


def test_surrogate_pairs_in_arguments_are_decoded() -> None:
    (found,) = answers([upper], call("upper", r'{"text": "\ud83d\ude00 \\ud800 \\u0000 a"}'))
    assert found == ToolResult(text="\U0001f600 \\UD800 \\U0000 A")


@pytest.mark.parametrize("error", [ValueError("odd"), KeyError("odd"), ZeroDivisionError("odd")])
def test_value_errors_are_agent_mistakes(error: Exception) -> None:
    def divide(a: int) -> int:
        """Raises."""
        raise error

    (found,) = answers([divide], call("divide", '{"a": 1}'))
    assert found.failed and type(error).__name__ in found.text and "odd" in found.text


def test_broken_image_of_a_function_fails_the_episode_alone() -> None:
    pytest.importorskip("PIL")

    def photo() -> Image:
        """Take a photo."""
        return Image(b"broken")

    with pytest.raises(InfrastructureFailure, match=r"the tool photo: .*tw\.Image got 6 bytes that are not a PNG"):
        answers([photo], call("photo", "{}"))


@pytest.mark.parametrize("make", [object, lambda: {"note": [object()]}])
def test_function_that_returns_an_object_fails_with_its_line(make: Callable[[], Any]) -> None:
    def look() -> Any:
        """Look."""
        return make()

    with pytest.raises(InfrastructureFailure, match=r"test_tool_functions\.py:\d+: .*type object, of which the agent"):
        answers([look], call("look", "{}"))


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (
            lambda image: pytest.importorskip("PIL.Image").open(io.BytesIO(image.data)),
            "a value of type PngImageFile, which the agent would not see as an image",
        ),
        (lambda image: image.data, "a value of type bytes"),
        (lambda image: {"note": object(), "photo": image}, "a value of type Image"),
        (lambda image: [image, [image]], "a value of type Image"),
        (lambda image: ToolResult(text="", images=image), "TypeError: images is not a tuple of tw.Image"),
        (lambda image: ToolResult(text="", images=(image.data,)), "TypeError: images is not a tuple of tw.Image"),
        (lambda image: ToolResult(text=3), "TypeError: text is a value of type int: give a str"),
    ],
)
def test_function_whose_images_would_be_lost_fails_with_its_line(make: Callable[[Image], Any], problem: str) -> None:
    pytest.importorskip("PIL")
    image = Image(np.zeros((2, 2, 3), np.uint8))

    def photo() -> Any:
        """Take a photo."""
        return make(image)

    with pytest.raises(InfrastructureFailure, match=r"the tool photo: test_tool_functions\.py:\d+: ") as caught:
        answers([photo], call("photo", "{}"))
    assert problem in str(caught.value)


def test_function_shows_other_values_as_python_prints_them() -> None:
    def measure() -> Any:
        """Measure."""
        return {"array": np.arange(2), "bytes": b"a"}

    (found,) = answers([measure], call("measure", "{}"))
    assert found == ToolResult(text="{'array': array([0, 1]), 'bytes': b'a'}")


@pytest.mark.parametrize("is_async", [False, True])
def test_other_errors_are_retried_then_fail_the_episode(is_async: bool) -> None:
    tries: list[int] = []

    def down() -> str:
        tries.append(1)
        raise ConnectionError("server gone")

    @tool(retries=1)
    def plain() -> str:
        """A server."""
        return down()

    @tool(retries=1)
    async def waiting() -> str:
        """A server."""
        return down()

    function = waiting if is_async else plain
    with pytest.raises(InfrastructureFailure, match="server gone, 2 times"):
        answers([function, add], call(function.__name__), call("add", '{"a": 1}'))
    assert len(tries) == 2


def test_transient_failure_is_hidden_from_the_agent() -> None:
    tries: list[int] = []

    @tool(retries=2)
    def shaky() -> str:
        """A server."""
        tries.append(1)
        if len(tries) < 3:
            raise OSError("busy")
        return "fine"

    assert answers([shaky], call("shaky")) == [ToolResult(text="fine")]


def test_hanging_call_times_out_as_infrastructure_failure() -> None:
    @tool(timeout_s=0.05, retries=0)
    def hangs() -> str:
        """Sleeps."""
        let_go.wait(600)
        return ""

    let_go = threading.Event()
    with pytest.raises(InfrastructureFailure, match=r"took longer than 0\.05 s, once$"):
        answers([hangs], call("hangs"))
    assert not let_go.is_set(), "it still runs"
    let_go.set()


def test_blocking_async_tool_is_interrupted_at_its_timeout() -> None:
    @tool(timeout_s=0.1, retries=0)
    async def blocks() -> str:
        """Blocks the event loop."""
        time.sleep(60)
        return "late"

    with pytest.raises(InfrastructureFailure, match=r"the tool blocks: took longer than 0\.1 s"), allow_interrupts():
        answers([blocks], call("blocks"))


def test_calls_run_concurrently_within_the_limit() -> None:
    now, most = [0], [0]

    @tool(concurrency=3)
    async def slow(a: int) -> int:
        """Waits."""
        now[0] += 1
        most[0] = max(most[0], now[0])
        await asyncio.sleep(0.01)
        now[0] -= 1
        return a

    found = answers([slow], *(call("slow", f'{{"a": {number}}}') for number in range(9)))
    assert [each.text for each in found] == [str(number) for number in range(9)]
    assert most[0] == 3


def test_pure_tool_results_are_cached_and_shared() -> None:
    asked: list[int] = []

    @tool(pure=True)
    async def square(a: int) -> int:
        """The square."""
        asked.append(a)
        await asyncio.sleep(0.01)
        return a * a

    texts = ['{"a": 3}', '{"a":3}', '{"a": 4}', '{ "a" : 3 }']
    assert [each.text for each in answers([square], *(call("square", text) for text in texts))] == ["9", "9", "16", "9"]
    assert sorted(asked) == [3, 4]


def test_failure_of_pure_tool_is_not_cached() -> None:
    asked: list[int] = []

    @tool(pure=True, retries=0)
    async def first_fails() -> str:
        """Fails once."""
        asked.append(1)
        if len(asked) == 1:
            raise OSError("busy")
        return "fine"

    async def run() -> str:
        box = ToolBox([from_function(first_fails)])
        async with box.open(0) as tools:
            with pytest.raises(InfrastructureFailure):
                await tools.call(call("first_fails"))
            return (await tools.call(call("first_fails"))).text

    assert asyncio.run(run()) == "fine"


def exits() -> str:
    """Ends the program."""
    sys.exit("no key")


def interrupts() -> str:
    """Raise KeyboardInterrupt, like Ctrl-C."""
    raise KeyboardInterrupt


def runs_out() -> str:
    """Looks for more than there is."""
    return next(iter([]))


async def exits_async() -> str:
    """Ends the program."""
    sys.exit("no key")


def deep() -> str:
    """Breaks in a library."""
    return json.dumps(object)


def own_time_out() -> str:
    """A server that does not answer."""
    raise TimeoutError("no\n answer")


def line_of(function: Callable[..., Any]) -> int:
    return function.__code__.co_firstlineno + 2


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (exits, "SystemExit: no key"),
        (exits_async, "SystemExit: no key"),
        (interrupts, "KeyboardInterrupt"),
        (runs_out, "StopIteration"),
        (deep, "TypeError: Object of type type is not JSON serializable"),
        (own_time_out, "TimeoutError: no answer"),
    ],
)
def test_tool_bug_is_reported_with_its_line(function: Callable[..., Any], said: str) -> None:
    """SystemExit and the tool's own TimeoutError are reported without waiting."""
    with pytest.raises(InfrastructureFailure) as error:
        answers([function], call(function.__name__))
    place = f"test_tool_functions.py:{line_of(function)}"
    assert str(error.value) == f"the tool {function.__name__}: {place}: {said}, 3 times"


def test_bug_behind_decorator_is_reported_at_tool_line() -> None:
    cached = functools.lru_cache(deep)
    with pytest.raises(InfrastructureFailure, match=f"test_tool_functions.py:{line_of(deep)}: TypeError"):
        answers([cached], call("deep"))


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"timeout": 3}, '@tool of add has no option "timeout": did you mean "timeout_s"?'),
        ({"timeout_s": "long"}, "@tool of add, timeout_s: input should be a valid number"),
        ({"timeout_s": 0}, "@tool of add, timeout_s: input should be greater than 0"),
        ({"concurrency": 0}, "@tool of add, concurrency: input should be greater than or equal to 1"),
        ({"retries": -1}, "@tool of add, retries: input should be greater than or equal to 0"),
    ],
)
def test_unknown_rule_is_a_user_error(rules: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as error:
        tool(**rules)(add)
    assert str(error.value).startswith(said)


def undocumented(a: int) -> int:
    return a


def untyped(a) -> int:  # type: ignore[no-untyped-def]
    """Typeless."""
    return a


def spread(*numbers: int) -> int:
    """Any."""
    return sum(numbers)


@pytest.mark.parametrize(
    ("function", "said"), [(undocumented, "no docstring"), (untyped, "no type for a"), (spread, "named parameters")]
)
def test_unusable_function_is_a_user_error(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        from_function(function)


SHOWN: list[tuple[Any, str]] = [
    ("3 figs", "3 figs"),
    (None, "null"),
    (True, "true"),
    ({"price": 3, "name": "Pfläume"}, '{"price": 3, "name": "Pfläume"}'),
    ([1, 2.5], "[1, 2.5]"),
    ({1}, "{1}"),
]


@pytest.mark.parametrize(("given", "text"), SHOWN, ids=lambda each: str(each)[:12])
def test_return_value_becomes_text_or_json(given: Any, text: str) -> None:
    def find() -> Any:
        """Find it."""
        return given

    (answer,) = answers([find], call("find"))
    assert answer.text == text
