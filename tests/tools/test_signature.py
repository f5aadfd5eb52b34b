"""Short signatures and example arguments of tools."""

import enum
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from turnwise.core.messages import ToolSpec
from turnwise.tools.function import from_function
from turnwise.tools.signature import example_arguments, format_signature


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int


def room(name: str) -> str:
    """One string."""
    return name


def quote(city: str, nights: int, unit: Literal["C", "F"] = "C", by: float | None = None, note: str = "") -> str:
    """Arguments of all types."""
    return f"{city}{nights}{unit}{by}{note}"


def dye(colour: Colour, size: list[int], at: Point | None, much: int | str, also: list[Point] | None = None) -> str:
    """Arguments of user-defined types."""
    return f"{colour}{size}{at}{much}{also}"


def nothing() -> str:
    """No argument."""
    return ""


@pytest.mark.parametrize(
    ("function", "said", "example"),
    [
        (room, "room(name)", {"name": "..."}),
        (
            quote,
            'quote(city, nights: integer, unit: "C"|"F" = "C", by?: number, note = "")',
            {"city": "...", "nights": 1},
        ),
        (
            dye,
            'dye(colour: "red"|"blue", size: list of integer, at: object, much: integer|string, also?: list of object)',
            {"colour": "red", "size": [], "at": {}, "much": 1},
        ),
        (nothing, "nothing()", {}),
    ],
)
def test_signature_and_example_of_function(function: Any, said: str, example: dict[str, Any]) -> None:
    spec = from_function(function).spec
    assert format_signature(spec) == said
    assert example_arguments(spec) == example


def test_example_arguments_are_valid() -> None:
    for function in (room, quote, nothing):
        tool = from_function(function)
        assert tool.check(example_arguments(tool.spec)) == example_arguments(tool.spec)


def test_long_enumerations_are_shortened() -> None:
    parameters = {"type": "object", "properties": {"land": {"enum": [f"land {number}" for number in range(999)]}}}
    said = format_signature(ToolSpec(name="go", description="", parameters=parameters))
    assert said.startswith('go(land?: "land 0"|"land 1"|') and said.endswith("...)") and len(said) < 80


NAMES = st.sampled_from(["a", "b", "<s>"])
SCHEMAS = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["string", "integer", "array", "null", "odd", ["null", "number"], ["null"]]),
            "enum": st.lists(st.none() | st.text(max_size=9) | st.integers(), min_size=1, max_size=3),
            "const": st.none() | st.text(max_size=9),
            "default": st.none() | st.text(max_size=99),
            "$ref": NAMES.map(lambda name: f"#/$defs/{name}") | st.just("https://elsewhere"),
        },
    ),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "type": st.just("array"),
            "items": inner | st.booleans(),
            "anyOf": st.lists(inner | st.booleans(), min_size=1, max_size=3),
            "oneOf": st.lists(inner, min_size=1, max_size=3),
        },
    ),
    max_leaves=8,
)


@given(
    properties=st.dictionaries(NAMES, SCHEMAS, max_size=3),
    defined=st.dictionaries(NAMES, SCHEMAS, max_size=3),
    required=st.lists(NAMES, max_size=2, unique=True),
)
def test_signature_accepts_any_schema(properties: dict[str, Any], defined: dict[str, Any], required: list[str]) -> None:
    """Schemas that name themselves are among them."""
    parameters = {"type": "object", "properties": properties, "$defs": defined, "required": required}
    spec = ToolSpec(name="go", description="", parameters=parameters)
    said = format_signature(spec)
    assert len(said) < 400 and all(name in said for name in properties)
    assert list(example_arguments(spec)) == (required or list(properties))
