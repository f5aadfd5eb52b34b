"""Functions of the device captured as graphs: one launch in place of hundreds."""

import logging
import time
from collections.abc import Callable, Hashable
from typing import Any

import torch

from turnwise.models.memory import spare_all

logger = logging.getLogger(__name__)


class Graphs:
    """What is captured reads and writes fixed places in memory: new weights need no new capture, new shapes do."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._graphs: dict[Hashable, Callable[[], None]] = {}
        self._memory: Any = None
        self.captures = 0
        self.seconds = 0.0
        """Spent on capturing so far."""

    def has(self, key: Hashable) -> bool:
        return key in self._graphs

    def run(self, key: Hashable) -> None:
        self._graphs[key]()

    def add(self, key: Hashable, function: Callable[[], None]) -> None:
        """Runs the function some times, and captures it: it must do no harm then."""
        if self._device.type != "cuda":
            self._graphs[key] = function
            return
        began = time.perf_counter()
        self.captures += 1
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(2):
                function()
        torch.cuda.current_stream().wait_stream(aside)
        self._graphs[key] = self._captured(function)
        spare_all()  # what compiling left behind never goes
        self.seconds += time.perf_counter() - began

    def _captured(self, function: Callable[[], None]) -> Callable[[], None]:
        """The graph's replay; the function itself where it does what no graph can hold."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._memory):
                function()
        except RuntimeError as error:
            logger.warning("this model cannot be captured, and decodes several times slower: %s", error)
            return function
        self._memory = graph.pool()
        return graph.replay

    def forget(self) -> None:
        """Their memory goes back with the next cleaning of torch's own."""
        self._graphs.clear()
        self._memory = None
