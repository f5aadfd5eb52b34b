"""Between a device and optimiser states on the host: gradients come piece by piece, parameters go back the same way.

While the host works on one piece, the next one's gradients and the last one's parameters are on their way.

    device   g0 > . g1 > . g2 > .      > p0   > p1   > p2
    host        work on 0   work on 1   work on 2
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from turnwise.models.memory_needs import PIECE


class Carrier:
    """`own` parameters on a device, and for each its float32 `master` on the host."""

    def __init__(self, own: Sequence[nn.Parameter], masters: Sequence[nn.Parameter], piece: int = PIECE) -> None:
        self._own, self._masters, self._piece = own, masters, piece
        self._places: list[_Place] = []
        """Two, which take turns; made when the first gradients come."""
        self._stream = torch.cuda.Stream() if own and own[0].is_cuda else None

    @torch.no_grad()
    def pieces(self, gradients: dict[int, Tensor]) -> Iterator[None]:
        """At each, some masters have their gradients: step them. `gradients`, by number, are given up on the way."""
        parts = self._cut(gradients)
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream())
        if parts:
            self._fetch(0, parts[0], gradients)
        for turn, numbers in enumerate(parts):
            if turn + 1 < len(parts):
                self._fetch(turn + 1, parts[turn + 1], gradients)
            self._places[turn % 2].wait()
            for number, view in zip(numbers, self._places[turn % 2].gradients, strict=True):
                self._masters[number].grad = view
            yield
            self._show(turn, numbers)
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)

    def _cut(self, gradients: dict[int, Tensor]) -> list[list[int]]:
        """Numbers of parameters that travel together, those without a gradient left out."""
        parts, size = list[list[int]](), 0
        for number in sorted(gradients):
            count = gradients[number].numel()
            if not parts or size + count > self._piece:
                parts.append([])
                size = 0
            parts[-1].append(number)
            size += count
        return parts

    def _fetch(self, turn: int, numbers: Sequence[int], gradients: dict[int, Tensor]) -> None:
        """Sends gradients on their way, to the place of this turn."""
        while len(self._places) < 2:
            self._places.append(_Place(self._largest(), self._own[0].dtype, self._stream))
        self._places[turn % 2].fetch([gradients.pop(number) for number in numbers])

    def _largest(self) -> int:
        sizes = [each.numel() for each in self._own]
        return min(sum(sizes), max(self._piece, *sizes))

    def _show(self, turn: int, numbers: Sequence[int]) -> None:
        """Sends the stepped masters to the model, and takes their gradients away."""
        masters = [self._masters[number] for number in numbers]
        self._places[turn % 2].show(masters, [self._own[number] for number in numbers])
        for master in masters:
            master.grad = None


class _Place:
    """Memory of the host for one piece, from which and to which a device copies while the host goes on."""

    def __init__(self, size: int, dtype: torch.dtype, stream: "torch.cuda.Stream | None") -> None:
        pinned = stream is not None
        self._stream = stream
        self._arriving = torch.empty(size, dtype=torch.float32, pin_memory=pinned)
        self._leaving = torch.empty(size, dtype=dtype, pin_memory=pinned)
        self._arrived = torch.cuda.Event() if pinned else None
        self._left = torch.cuda.Event() if pinned else None
        self.gradients: list[Tensor] = []

    def fetch(self, gradients: Sequence[Tensor]) -> None:
        self.gradients = _views(self._arriving, gradients)
        with torch.cuda.stream(self._stream):
            for view, gradient in zip(self.gradients, gradients, strict=True):
                view.copy_(gradient, non_blocking=True)
                if self._stream is not None:
                    gradient.record_stream(self._stream)
            if self._arrived is not None:
                self._arrived.record(self._stream)

    def wait(self) -> None:
        """Until the gradients are here."""
        if self._arrived is not None:
            self._arrived.synchronize()

    def show(self, masters: Sequence[Tensor], own: Sequence[Tensor]) -> None:
        if self._left is not None:
            self._left.synchronize()  # what left from here before has arrived
        views = _views(self._leaving, own)
        for view, master in zip(views, masters, strict=True):
            view.copy_(master)
        with torch.cuda.stream(self._stream):
            for view, each in zip(views, own, strict=True):
                each.copy_(view, non_blocking=True)
            if self._left is not None:
                self._left.record(self._stream)


def _views(memory: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Parts of the memory in these shapes, behind each other."""
    parts = memory[: sum(each.numel() for each in like)].split([each.numel() for each in like])
    return [part.view(each.shape) for part, each in zip(parts, like, strict=True)]
