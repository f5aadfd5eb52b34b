"""Train language-model agents that act over many turns, with reinforcement learning.

The public names load when they are first used: `import turnwise` alone costs milliseconds and no torch.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

from turnwise.core.process import set_library_defaults

set_library_defaults()

PUBLIC = {
    "Config": "turnwise.config.schema:Config",
    "Outcome": "turnwise.envs.text_env:Outcome",
    "StrictParams": "turnwise.envs.text_env:StrictParams",
    "TextEnv": "turnwise.envs.text_env:TextEnv",
    "UserError": "turnwise.core.errors:UserError",
    "goes_on": "turnwise.envs.text_env:goes_on",
    "lost": "turnwise.envs.text_env:lost",
    "train": "turnwise.recipes.run:train_env",
    "won": "turnwise.envs.text_env:won",
}
"""Where each public name lives."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version(__name__)
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = PUBLIC[name].partition(":")
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC, "__version__"})


class _Package(ModuleType):
    """`turnwise.train` is a room and a public function: importing the room must not put it in the function's place.

    The import system binds an imported room to its name here; `from turnwise.train.loop import X` does without.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in PUBLIC and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
