"""Float32 master weights of parameters of lower precision, on the device or offloaded to the CPU.

A bfloat16 weight of 1 cannot take a step of 0.001: steps accumulate in the master weight, which is copied, rounded,
into the model in place. Gradients are accumulated in float32 too, and a parameter's own gradient is freed at once.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from turnwise.models.memory.estimate import OFFLOAD_CHUNK
from turnwise.models.memory.split import split_by_size


class MasterWeights:
    """Parameters of a model, and the ones that are optimised: themselves if float32, else their master weights.

    `on_host`: all parameters have master weights, in host memory, and so is the optimizer's state.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], *, on_host: bool = False, chunk: int = OFFLOAD_CHUNK
    ) -> None:
        self.parameters = list(parameters)
        self.on_host = on_host
        self.optimised = [self._master(parameter) for parameter in self.parameters]
        self._offload = CpuOffload(self.parameters, self.optimised, chunk) if on_host else None
        self._sums: dict[int, Tensor] = {}
        self._hooks = [
            own.register_post_accumulate_grad_hook(lambda parameter, number=number: self._add(number, parameter))
            for number, (own, master) in enumerate(zip(self.parameters, self.optimised, strict=True))
            if own is not master
        ]

    def release(self) -> None:
        """Take no more gradients, so that another optimizer can train the same parameters."""
        for hook in self._hooks:
            hook.remove()

    def _master(self, parameter: nn.Parameter) -> nn.Parameter:
        if parameter.dtype == torch.float32 and not self.on_host:
            return parameter
        values = parameter.detach().to("cpu" if self.on_host else parameter.device, torch.float32, copy=True)
        master = nn.Parameter(values)
        master.__dict__.update(parameter.__dict__)  # attributes that optimizers read
        return master

    def _add(self, number: int, parameter: nn.Parameter) -> None:
        assert parameter.grad is not None
        if number in self._sums:
            self._sums[number] += parameter.grad
        else:
            self._sums[number] = parameter.grad.float()
        parameter.grad = None

    def gradients(self) -> list[Tensor]:
        """Return the accumulated gradients, on the model's device; float32 if there are master weights."""
        gradients = [self._sums.get(number, own.grad) for number, own in enumerate(self.parameters)]
        return [gradient for gradient in gradients if gradient is not None]

    def chunks(self) -> Iterator[None]:
        """Yield once per chunk of parameters that have their gradients: step those. Then update the model."""
        if self._offload is not None:
            yield from self._offload.chunks(self._sums)
            return
        for number, total in self._sums.items():
            self.optimised[number].grad = total
        self._sums.clear()
        yield
        self._update_model()

    @torch.no_grad()
    def _update_model(self) -> None:
        """Copy the master weights into the model's storage."""
        pairs = [pair for pair in zip(self.parameters, self.optimised, strict=True) if pair[0] is not pair[1]]
        if pairs:
            torch._foreach_copy_([own for own, _ in pairs], [master for _, master in pairs])

    def drop_gradients(self) -> None:
        self._sums.clear()
        for parameter in (*self.parameters, *self.optimised):
            parameter.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """Return the master weights by index, without parameters that have none."""
        both = enumerate(zip(self.parameters, self.optimised, strict=True))
        return {str(number): master.detach() for number, (own, master) in both if own is not master}

    @torch.no_grad()
    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Load the master weights; without any, copy them from the model."""
        for number, (own, master) in enumerate(zip(self.parameters, self.optimised, strict=True)):
            if own is not master:
                master.copy_(tensors[str(number)] if tensors else own)


class CpuOffload:
    """Parameters on a device with float32 master weights on the host.

    Gradients and updated weights are copied in chunks, overlapping with the optimizer's work on the previous chunk.
    """

    def __init__(
        self, own: Sequence[nn.Parameter], masters: Sequence[nn.Parameter], chunk: int = OFFLOAD_CHUNK
    ) -> None:
        self._own, self._masters, self._chunk = own, masters, chunk
        self._buffers: list[_HostBuffer] = []
        """Two, used in turn; allocated at the first gradients."""
        self._stream = torch.cuda.Stream() if own and own[0].is_cuda else None

    @torch.no_grad()
    def chunks(self, gradients: dict[int, Tensor]) -> Iterator[None]:
        """Yield once per chunk of master weights that has its gradients: step those. Empties `gradients` on the way."""
        parts = self._split(gradients)
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream())
        if parts:
            self._fetch(0, parts[0], gradients)
        for turn, numbers in enumerate(parts):
            if turn + 1 < len(parts):
                self._fetch(turn + 1, parts[turn + 1], gradients)
            self._buffers[turn % 2].wait()
            for number, view in zip(numbers, self._buffers[turn % 2].gradients, strict=True):
                self._masters[number].grad = view
            yield
            self._update_model(turn, numbers)
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)

    def _split(self, gradients: dict[int, Tensor]) -> list[list[int]]:
        """Return the indices of the parameters in each chunk, without those that have no gradient."""
        return split_by_size(sorted(gradients), lambda number: gradients[number].numel(), self._chunk)

    def _fetch(self, turn: int, numbers: Sequence[int], gradients: dict[int, Tensor]) -> None:
        """Start copying gradients into this turn's buffer."""
        while len(self._buffers) < 2:
            self._buffers.append(_HostBuffer(self._buffer_size(), self._own[0].dtype, self._stream))
        self._buffers[turn % 2].fetch([gradients.pop(number) for number in numbers])

    def _buffer_size(self) -> int:
        sizes = [tensor.numel() for tensor in self._own]
        return min(sum(sizes), max(self._chunk, *sizes))

    def _update_model(self, turn: int, numbers: Sequence[int]) -> None:
        """Start copying the stepped master weights to the model, and drop their gradients."""
        masters = [self._masters[number] for number in numbers]
        self._buffers[turn % 2].send(masters, [self._own[number] for number in numbers])
        for master in masters:
            master.grad = None


class _HostBuffer:
    """Pinned host memory for a chunk of gradients and of weights, copied asynchronously."""

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
        """Wait for the gradients."""
        if self._arrived is not None:
            self._arrived.synchronize()

    def send(self, masters: Sequence[Tensor], own: Sequence[Tensor]) -> None:
        if self._left is not None:
            self._left.synchronize()  # the buffer's previous weights have arrived
        views = _views(self._leaving, own)
        for view, master in zip(views, masters, strict=True):
            view.copy_(master)
        with torch.cuda.stream(self._stream):
            for view, tensor in zip(views, own, strict=True):
                tensor.copy_(view, non_blocking=True)
            if self._left is not None:
                self._left.record(self._stream)


def _views(memory: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return consecutive views of a buffer in the shapes of these tensors."""
    parts = memory[: sum(tensor.numel() for tensor in like)].split([tensor.numel() for tensor in like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]
