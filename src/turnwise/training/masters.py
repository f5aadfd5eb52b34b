"""Float32 masters of parameters in fewer bits: the optimiser moves them, and copies them into the model in place.

A bfloat16 weight of 1 cannot take a step of 0.001: steps add up in the master, and the model shows them rounded.
Gradients are added up in float32 as well, and a parameter's own is given up at once.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from turnwise.models.memory_needs import PIECE
from turnwise.training.carrier import Carrier


class Masters:
    """`parameters` of the model, and for each the one that is optimised: itself where it is float32 already.

    `on_host`: masters live in the host's memory, and with them all that an optimiser keeps.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], *, on_host: bool = False, piece: int = PIECE) -> None:
        self.parameters = list(parameters)
        self.on_host = on_host
        self.optimised = [self._master(each) for each in self.parameters]
        self._carrier = Carrier(self.parameters, self.optimised, piece) if on_host else None
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
