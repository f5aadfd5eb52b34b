"""Train language-model agents that act over many turns, with reinforcement learning.

The public names load when they are first used: `import turnwise` alone costs milliseconds and no torch.
"""

import importlib
import os
from typing import Any

LIBRARY_DEFAULTS = {
    # OpenMP threads that spin at the end of a parallel region take the CPU from whoever they wait for: beside one busy
    # process a training step took five times as long.
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "0",
    # mimalloc, PyTorch's allocator on ARM, returns freed memory after 10 ms; a training step then spends a fifth of its
    # time on page faults.
    "MIMALLOC_PURGE_DELAY": "-1",
}
"""Environment variables that torch's libraries read when they are loaded; what the user has set stays."""

for name, value in LIBRARY_DEFAULTS.items():
    os.environ.setdefault(name, value)

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
        return importlib.import_module("turnwise.core.version").installed_version()
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = PUBLIC[name].partition(":")
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC, "__version__"})
