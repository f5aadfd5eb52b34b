"""Names of environment parameters as the user set them, for error messages."""

from contextlib import AbstractContextManager
from contextvars import ContextVar

from turnwise.concurrency.context_values import set_in_block

PARAMS_SETTING = "env.params"

_section: ContextVar[str] = ContextVar("params_section", default=PARAMS_SETTING)


def param_setting(name: str = "") -> str:
    """Return the setting of a parameter: env.params.size, or env.mix.small.params.size inside `params_in`."""
    return f"{_section.get()}.{name}" if name else _section.get()


def params_in(section: str) -> AbstractContextManager[None]:
    """Name the settings of this section while code of the environment runs."""
    return set_in_block(_section, section)
