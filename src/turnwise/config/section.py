"""What every section of the configuration is."""

import math
from typing import Any

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


def is_plain(value: Any) -> bool:
    """Text, numbers, true, false and none, lists and tables of them: what a TOML file gives back unchanged."""
    if isinstance(value, list):
        return all(is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
    return value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))
