"""Changed copies of the parameters of algorithms."""

from typing import Any, TypeVar

from turnwise.core.section import Section

Params = TypeVar("Params", bound=Section)


def change(params: Params, **changes: Any) -> Params:
    return params.model_copy(update=changes)
