"""Argument docs of function tools in the JSON schema."""

from typing import Annotated, Any

import pytest
from pydantic import Field

from turnwise.tools.docstrings import split_docstring
from turnwise.tools.function import from_function

GOOGLE = """The forecast for a city.

Up to ten days.

Args:
    city (str): The city, in English:
        no abbreviations.
    days: Number of days,
      at most 10.
    this line is malformed

    unit (str, optional): "C" or "F".

Returns:
    One line per day.
"""
NUMPY = """The forecast for a city.

Up to ten days.

Parameters
----------
city : str
    The city, in English:
    no abbreviations.
days
    Number of days,
    at most 10.
unit : {"C", "F"}, optional
    "C" or "F".

Returns
-------
str
    One line per day.
"""
DESCRIBED = {
    "city": "The city, in English: no abbreviations.",
    "days": "Number of days, at most 10.",
    "unit": '"C" or "F".',
}
NAMES = ("city", "days", "unit")


def test_split_docstring_reads_google_style() -> None:
    rest = "The forecast for a city.\n\nUp to ten days.\n\nReturns:\n    One line per day."
    assert split_docstring(GOOGLE.strip(), NAMES) == (rest, DESCRIBED)


def test_split_docstring_reads_numpy_style() -> None:
    rest = "The forecast for a city.\n\nUp to ten days.\n\nReturns\n-------\nstr\n    One line per day."
    assert split_docstring(NUMPY.strip(), NAMES) == (rest, DESCRIBED)


def test_split_docstring_reads_several_names_on_one_line() -> None:
    text = "Adds.\n\nParameters\n----------\na, b : int\n    A summand."
    assert split_docstring(text, ("a", "b")) == ("Adds.", {"a": "A summand.", "b": "A summand."})


@pytest.mark.parametrize(
    "text",
    [
        "The forecast.",
        "The forecast.\n\nArgs: none.",
        "The forecast.\n\nArgs:\n    country: not a parameter",
        "The forecast.\n\nArgs:\n    city:",
        "Parameters\n\nof a forecast.",
        "city: a word at the start of a line",
        "Args:\n",
    ],
)
def test_split_docstring_keeps_other_docstrings(text: str) -> None:
    assert split_docstring(text, NAMES) == (text, {})


Unit = Annotated[str, Field(description="The unit.")]


def weather(city: str, days: int = 1, unit: Unit = "C", state: Any = None) -> str:
    """The forecast for a city.

    Args:
        city: The city, in English.
        days: Number of days.
        unit: Not used, because the annotation describes it.
        state: Hidden from the model.
    """
    return city


def test_from_function_adds_argument_docs_to_the_schema() -> None:
    spec = from_function(weather).spec
    assert spec.description == "The forecast for a city."
    described = {name: field.get("description") for name, field in spec.parameters["properties"].items()}
    assert described == {"city": "The city, in English.", "days": "Number of days.", "unit": "The unit."}
