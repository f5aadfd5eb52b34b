"""Stands in for the package of OpenEnv's web page, which no test opens: 83 MB, and seconds of every start."""

from typing import Any
from unittest.mock import MagicMock


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return MagicMock(name=f"gradio.{name}")
