"""Tensors that are sent between the processes of a cluster."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor


@pytest.fixture
def as_arrays(ray_cluster: Any) -> Iterator[None]:
    from ray.util.serialization import deregister_serializer

    from turnwise.cluster.weights import send_tensors_as_arrays

    send_tensors_as_arrays()
    yield
    deregister_serializer(Tensor)


@pytest.mark.parametrize(
    "sent",
    [
        torch.arange(6.0).view(2, 3).t(),
        torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        torch.tensor([True, False]),
        torch.tensor(7),
        torch.empty(0, 4),
        torch.ones(40_000).requires_grad_(),
    ],
    ids=["transposed", "bfloat16", "bool", "scalar", "empty", "large"],
)
@pytest.mark.usefixtures("as_arrays")
def test_tensors_arrive_as_they_were_and_can_be_written_to(sent: Tensor) -> None:
    import ray

    stored = ray.put([{"tensor": sent}])
    found = ray.get(stored)[0]["tensor"]
    assert found.dtype is sent.dtype
    assert not found.requires_grad
    assert torch.equal(found, sent)
    found.zero_()  # memory of the object store is read-only
    assert torch.equal(ray.get(stored)[0]["tensor"], sent)


@pytest.mark.usefixtures("as_arrays")
def test_tensors_are_sent_as_arrays() -> None:
    from ray import cloudpickle

    assert b"numpy" in cloudpickle.dumps(torch.ones(3))
