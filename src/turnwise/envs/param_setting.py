"""Names of environment parameters as the user set them, for error messages."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

PARAMS_SETTING = "env.params"

_section: ContextVar[str] = ContextVar("params_section", default=PARAMS_SETTING)


def param_setting(name: str = "") -> str:
    """Return the setting of a parameter: env.params.size, or env.mix.small.params.size inside `params_in`."""
    return f"{_section.get()}.{name}" if name else _section.get()


@contextmanager
def params_in(section: str) -> Iterator[None]:
    """Name the settings of this section while code of the environment runs."""
    token = _section.set(section)
    try:
        yield
    finally:
        _section.reset(token)
