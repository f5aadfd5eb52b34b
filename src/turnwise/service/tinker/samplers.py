"""Engines that sample from saved weights. Adapters of one shape share an engine, into whose adapter they are copied."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from turnwise.core.errors import UserError
from turnwise.core.protocols import Engine
from turnwise.service.tinker.adapters import LoraShape, SharedModel, copy_tensors
from turnwise.service.tinker.errors import RequestFailure
from turnwise.service.tinker.sampling import SampleJob, sample
from turnwise.service.tinker.saved_weights import SavedWeights, WeightsPath

MAX_SLOTS = 8
"""Shapes of adapters that have an engine at the same time."""


@dataclass(slots=True, kw_only=True)
class Slot:
    """An engine, and the parameters that weights of one shape are copied into."""

    model: Any
    engine: Engine
    adapter: str | None
    parameters: dict[str, nn.Parameter]
    path: str | None = None
    """Weights that it has now."""
    version: int = 0


class Samplers:
    def __init__(
        self,
        shared: SharedModel,
        load_copy: Callable[[], Any],
        make_engine: Callable[[Any], Engine],
        weights: SavedWeights,
    ) -> None:
        self._shared, self._load_copy, self._make_engine, self._weights = shared, load_copy, make_engine, weights
        self._slots: dict[LoraShape | str, Slot] = {}
        """By shape of the adapter; also "base", and "full" for models with all weights trained. Oldest use first."""
        self._awake: Slot | None = None

    async def sample(
        self, path: str | None, jobs: Sequence[SampleJob], max_tokens: int
    ) -> Sequence[bytes | RequestFailure]:
        """Return the encoded responses of jobs that sample from the same weights, or why they failed."""
        try:
            slot = await self._prepare(path)
            return await sample(slot.engine, slot.model, jobs, max_tokens)
        except RequestFailure as failure:
            return [failure] * len(jobs)
        except UserError as error:  # such as too little memory for the KV cache
            return [RequestFailure(str(error))] * len(jobs)

    async def _prepare(self, path: str | None) -> Slot:
        slot = self._find_slot(path)
        if self._awake is not None and self._awake is not slot:
            await self._awake.engine.sleep()
        self._awake = slot
        if slot.adapter is not None or slot.model is self._shared.model:
            self._shared.activate(slot.adapter)
        if path is not None and path != slot.path:
            copy_tensors(slot.parameters, self._weights.load(WeightsPath.parse(path)))
            slot.path, slot.version = path, slot.version + 1
            await slot.engine.publish(slot.version, slot.model)
        return slot

    def _find_slot(self, path: str | None) -> Slot:
        if path is None:
            key: LoraShape | str = "base"
        else:
            key = self._weights.info(WeightsPath.parse(path)).spec.shape or "full"
        slot = self._slots.pop(key, None)
        if slot is None:
            if len(self._slots) >= MAX_SLOTS:
                self._drop(next(iter(self._slots)))
            slot = self._make_slot(key)
        self._slots[key] = slot  # at the end: the most recently used
        return slot

    def _drop(self, key: LoraShape | str) -> None:
        """Free the adapter and the KV cache of the slot that was used least recently."""
        slot = self._slots.pop(key)
        if self._awake is slot:
            self._awake = None
        if slot.adapter is not None:
            self._shared.remove(slot.adapter)

    def _make_slot(self, key: LoraShape | str) -> Slot:
        if isinstance(key, LoraShape):
            adapter = self._shared.add(key, seed=0)
            parameters, model = self._shared.parameters(adapter), self._shared.model
        else:
            adapter, model = None, self._shared.model if key == "base" else self._load_copy()
            parameters = {} if key == "base" else dict(model.named_parameters())
            if key == "base":
                self._shared.activate(None)
        return Slot(model=model, engine=self._make_engine(model), adapter=adapter, parameters=parameters)
