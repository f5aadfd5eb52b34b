"""Attention as one operator that compilers leave alone: what it attends to is the plan that is in force when it runs.

A compiled layer then depends on no plan: one compilation serves the engine's passes, the learner's and all layers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor


class ActivePlan(Protocol):
    """`softcap` and `window` are 0 where there is none. Layers come in their order, each once in a forward."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float, softcap: float, window: int) -> Tensor:
        """[N, H, D] from queries [N, H, D], keys and values [N, KV, D]."""
        ...


class TrainingPlan(ActivePlan, Protocol):
    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float, softcap: float, window: int
    ) -> tuple[Tensor, Tensor]:
        """The same with the logarithm of each row's sum, [H, N] float32."""
        ...

    def backward(
        self,
        grad: Tensor,
        saved: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
        scale: float,
        softcap: float,
        window: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of query, key and value; saved: these, the output and the logarithms."""
        ...


class _InForce:
    """A plain global: the backward pass of a GPU runs in a thread of its own."""

    plan: Any = None


@contextmanager
def use_plan(plan: ActivePlan) -> Iterator[None]:
    """Inside, every forward and backward attends by this plan."""
    outer, _InForce.plan = _InForce.plan, plan
    try:
        yield
    finally:
        _InForce.plan = outer


def _plan() -> Any:
    if _InForce.plan is None:
        raise RuntimeError("a model loaded with turnwise's attention runs inside attending(plan), or with plan=...")
    return _InForce.plan


@torch.library.custom_op("turnwise::attend", mutates_args=())
def attend(query: Tensor, key: Tensor, value: Tensor, scale: float, softcap: float, window: int) -> Tensor:
    return _plan().attend(query, key, value, scale, softcap, window)


@attend.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, scale: float, softcap: float, window: int) -> Tensor:
    return query.new_empty(query.shape)


@torch.library.custom_op("turnwise::attend_training", mutates_args=())
def attend_training(
    query: Tensor, key: Tensor, value: Tensor, scale: float, softcap: float, window: int
) -> tuple[Tensor, Tensor]:
    return _plan().forward(query, key, value, scale, softcap, window)


@attend_training.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, scale: float, softcap: float, window: int) -> tuple[Tensor, Tensor]:
    return query.new_empty(query.shape), query.new_empty(query.shape[1], query.shape[0], dtype=torch.float32)


@torch.library.custom_op("turnwise::attend_backward", mutates_args=())
def attend_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsums: Tensor,
    scale: float,
    softcap: float,
    window: int,
) -> tuple[Tensor, Tensor, Tensor]:
    return _plan().backward(grad, (query, key, value, out, logsums), scale, softcap, window)


@attend_backward.register_fake
def _(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsums: Tensor,
    scale: float,
    softcap: float,
    window: int,
) -> tuple[Tensor, Tensor, Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, *ctx.settings = inputs
    ctx.save_for_backward(query, key, value, *output)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    return (*attend_backward(grad, *ctx.saved_tensors, *ctx.settings), None, None, None)


attend_training.register_autograd(_gradients, setup_context=_save)


def attend_by_active_plan(
    query: Tensor, key: Tensor, value: Tensor, scale: float, softcap: float, window: int
) -> Tensor:
    """By the plan in force, with gradients where they are asked for."""
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        return attend_training(query, key, value, scale, softcap, window)[0]
    return attend(query, key, value, scale, softcap, window)
