"""Numbers with bounds, for settings and for the parameters of environments."""

from typing import Annotated

from pydantic import Field

Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
NonNegative = Annotated[float, Field(ge=0.0)]
LearningRate = Annotated[float, Field(gt=0.0, le=1.0)]
