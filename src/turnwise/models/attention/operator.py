"""Attention as a custom operator that torch.compile does not trace. It follows the plan that is active when it runs.

A compiled layer therefore does not depend on a plan: one compilation serves all layers, the engine and the learner.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any, Protocol

import torch
from torch import Tensor

Saved = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""Query, key, value, output, log-sum-exp."""
Gradients = tuple[Tensor, Tensor, Tensor]


class ActivePlan(Protocol):
    """Plan of a forward pass. Layers call it in order, once each. `softcap` and `window`: 0 if there is none."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float, softcap: float, window: int) -> Tensor:
        """Return the output [N, H, D] for queries [N, H, D] and keys and values [N, KV, D]."""
        ...


class TrainingPlan(ActivePlan, Protocol):
    """Plan that also supports the backward pass."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float, softcap: float, window: int
    ) -> tuple[Tensor, Tensor]:
        """Return the output and the log-sum-exp of the scores, [H, N] float32."""
        ...

    def backward(self, grad: Tensor, saved: Saved, scale: float, softcap: float, window: int) -> Gradients:
        """Return the gradients of query, key and value."""
        ...


class _Active:
    """A plain global, not thread-local: the backward pass on a GPU runs in another thread."""

    plan: ActivePlan | TrainingPlan | None = None
    lock = RLock()
    """Lets an engine and a learner in different threads take turns."""


@contextmanager
def use_plan(plan: ActivePlan) -> Iterator[None]:
    """Make forward and backward passes in this block follow the plan. Other threads wait until the block ends."""
    with _Active.lock:
        outer, _Active.plan = _Active.plan, plan
        try:
            yield
        finally:
            _Active.plan = outer


def _active_plan() -> Any:
    if _Active.plan is None:
        raise RuntimeError("no attention plan is active: run the model inside use_plan(plan), or pass plan=...")
    return _Active.plan


@torch.library.custom_op("turnwise::attend", mutates_args=())
def attend(query: Tensor, key: Tensor, value: Tensor, scale: float, softcap: float, window: int) -> Tensor:
    return _active_plan().attend(query, key, value, scale, softcap, window)


@attend.register_fake
def _(query: Tensor, *arguments: Any) -> Tensor:
    return query.new_empty(query.shape)


@torch.library.custom_op("turnwise::attend_training", mutates_args=())
def attend_training(
    query: Tensor, key: Tensor, value: Tensor, scale: float, softcap: float, window: int
) -> tuple[Tensor, Tensor]:
    return _active_plan().forward(query, key, value, scale, softcap, window)


@attend_training.register_fake
def _(query: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    return query.new_empty(query.shape), query.new_empty(query.shape[1], query.shape[0], dtype=torch.float32)


@torch.library.custom_op("turnwise::attend_backward", mutates_args=())
def attend_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    scale: float,
    softcap: float,
    window: int,
) -> tuple[Tensor, Tensor, Tensor]:
    return _active_plan().backward(grad, (query, key, value, out, logsumexp), scale, softcap, window)


@attend_backward.register_fake
def _(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, *ctx.settings = inputs
    ctx.save_for_backward(query, key, value, *output)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    return (*attend_backward(grad, *ctx.saved_tensors, *ctx.settings), None, None, None)


attend_training.register_autograd(_backward, setup_context=_setup_context)


def attend_by_active_plan(
    query: Tensor, key: Tensor, value: Tensor, scale: float, softcap: float, window: int
) -> Tensor:
    """Attend by the active plan, recording gradients if they are needed."""
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        return attend_training(query, key, value, scale, softcap, window)[0]
    return attend(query, key, value, scale, softcap, window)
