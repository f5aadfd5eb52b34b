"""`torch`, imported at its first use: it takes seconds, and settings are read without it.

if TYPE_CHECKING:
    import torch
else:
    from turnwise.algos.lazy_torch import torch
"""

import importlib
from typing import Any


class _LazyTorch:
    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module("torch"), name)
        setattr(self, name, value)
        return value


torch = _LazyTorch()
