"""Base class and value types of the sections of a configuration."""

import math
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


def is_plain(value: Any) -> bool:
    """Return whether TOML can store a value: text, finite numbers, booleans, None, and lists and tables of these."""
    if isinstance(value, list):
        return all(is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
    return value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))


Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
NonNegative = Annotated[float, Field(ge=0.0)]
LearningRate = Annotated[float, Field(gt=0.0, le=1.0)]
