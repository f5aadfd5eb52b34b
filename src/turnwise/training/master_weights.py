"""Float32 masters of parameters in fewer bits: the optimiser moves them, and copies them into the model in place.

A bfloat16 weight of 1 cannot take a step of 0.001: steps add up in the master, and the model shows them rounded.
Gradients are added up in float32 as well, and a parameter's own is given up at once.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from turnwise.models.memory.estimate import OFFLOAD_CHUNK


class MasterWeights:
    """`parameters` of the model, and for each the one that is optimised: itself where it is float32 already.

    `on_host`: masters live in the host's memory, and with them all that an optimiser keeps.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], *, on_host: bool = False, piece: int = OFFLOAD_CHUNK
    ) -> None:
        self.parameters = list(parameters)
        self.on_host = on_host
        self.optimised = [self._master(each) for each in self.parameters]
        self._carrier = CpuOffload(self.parameters, self.optimised, piece) if on_host else None
        self._sums: dict[int, Tensor] = {}
        for number, (own, master) in enumerate(zip(self.parameters, self.optimised, strict=True)):
            if own is not master:
                own.register_post_accumulate_grad_hook(lambda each, number=number: self._add(number, each))

    def _master(self, parameter: nn.Parameter) -> nn.Parameter:
        if parameter.dtype == torch.float32 and not self.on_host:
            return parameter
        values = parameter.detach().to("cpu" if self.on_host else parameter.device, torch.float32, copy=True)
        master = nn.Parameter(values)
        master.__dict__.update(parameter.__dict__)  # marks that optimisers go by
        return master

    def _add(self, number: int, parameter: nn.Parameter) -> None:
        assert parameter.grad is not None
        if number in self._sums:
            self._sums[number] += parameter.grad
        else:
            self._sums[number] = parameter.grad.float()
        parameter.grad = None

    def gradients(self) -> list[Tensor]:
        """Those there are, in float32, where the model is."""
        found = [self._sums.get(number, own.grad) for number, own in enumerate(self.parameters)]
        return [each for each in found if each is not None]

    def pieces(self) -> Iterator[None]:
        """At each, some or all masters have their gradients: step them. The model then shows what they are."""
        if self._carrier is not None:
            yield from self._carrier.pieces(self._sums)
            return
        for number, total in self._sums.items():
            self.optimised[number].grad = total
        self._sums.clear()
        yield
        self._show()

    @torch.no_grad()
    def _show(self) -> None:
        """Copies the masters into the model's own storage."""
        pairs = [pair for pair in zip(self.parameters, self.optimised, strict=True) if pair[0] is not pair[1]]
        if pairs:
            torch._foreach_copy_([own for own, _ in pairs], [master for _, master in pairs])

    def drop_gradients(self) -> None:
        self._sums.clear()
        for each in (*self.parameters, *self.optimised):
            each.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """The masters that are no parameters of the model, by number."""
        both = enumerate(zip(self.parameters, self.optimised, strict=True))
        return {str(number): master.detach() for number, (own, master) in both if own is not master}

    @torch.no_grad()
    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Takes the masters; without any, they are what the model's parameters are now."""
        for number, (own, master) in enumerate(zip(self.parameters, self.optimised, strict=True)):
            if own is not master:
                master.copy_(tensors[str(number)] if tensors else own)


class CpuOffload:
    """`own` parameters on a device, and for each its float32 `master` on the host."""

    def __init__(
        self, own: Sequence[nn.Parameter], masters: Sequence[nn.Parameter], piece: int = OFFLOAD_CHUNK
    ) -> None:
        self._own, self._masters, self._piece = own, masters, piece
        self._places: list[_Place] = []
        """Two, which take turns; made when the first gradients come."""
        self._stream = torch.cuda.Stream() if own and own[0].is_cuda else None

    @torch.no_grad()
    def pieces(self, gradients: dict[int, Tensor]) -> Iterator[None]:
        """Yield once per chunk of master weights that has its gradients: step those. Empties `gradients` on the way."""
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
