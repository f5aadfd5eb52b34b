"""Read forward_backward requests: tokens and tensors are bytes, which are checked before anything is computed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from google.protobuf.message import DecodeError
from torch import Tensor

from turnwise.service.tinker.errors import ApiError, RequestFailure, not_offered
from turnwise.service.tinker.messages import FLOAT32, INT32, INT64, MESSAGES

MAX_RANK = 2
"""Tensors are [N], or [N, K] with K targets at each position."""
MAX_TARGETS = 256
"""Largest K."""
DTYPES: dict[int, np.dtype[Any]] = {FLOAT32: np.dtype("<f4"), INT64: np.dtype("<i8"), INT32: np.dtype("<i4")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Datum:
    """A sequence and the inputs of the loss at its positions: `targets[i]` is predicted after `ids[i]`."""

    ids: Tensor  # [N] int64
    targets: Tensor  # [N] or [N, K] int64
    inputs: Mapping[str, Tensor]
    """By name, of the shape of the targets, float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBackward:
    """A request that was read and checked, apart from what depends on its loss."""

    data: tuple[Datum, ...]
    loss: str
    config: Mapping[str, float | str]
    forward_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLimits:
    vocabulary: int
    max_tokens: int
    """Longest sequence."""


def parse_forward_backward(body: bytes) -> Any:
    """Return the protobuf message of a body. Raises ApiError."""
    message = MESSAGES["ForwardBackwardRequest"]()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise ApiError(400, f"The body is not a ForwardBackwardRequest: {error}.") from None
    return message


def read_forward_backward(message: Any, limits: InputLimits) -> ForwardBackward:
    """Return the request in a message. Raises RequestFailure for what cannot be computed."""
    config: dict[str, float | str] = dict(message.loss_fn_config)
    for name, value in message.loss_fn_config_v2.items():
        config[name] = value.text if value.HasField("text") else value.number
    if not message.data:
        raise RequestFailure("The request has no data: send at least one datum.")
    data = tuple(_read_datum(datum, f"data[{number}]", limits) for number, datum in enumerate(message.data))
    return ForwardBackward(data=data, loss=message.loss_fn, config=config, forward_only=message.forward_only)


def _read_datum(message: Any, where: str, limits: InputLimits) -> Datum:
    ids = _read_tokens(message.model_input, f"{where}.model_input")
    _check_ids(ids, f"{where}.model_input", limits.vocabulary)
    if not 0 < len(ids) <= limits.max_tokens:
        raise RequestFailure(f"{where}.model_input has {len(ids)} tokens: send 1 to {limits.max_tokens}.")
    tensors = {
        name: _read_tensor(tensor, f'{where}.loss_fn_inputs["{name[:40]}"]', len(ids))
        for name, tensor in message.loss_fn_inputs.items()
    }
    targets = tensors.pop("target_tokens", None)
    if targets is None:
        raise RequestFailure(f"{where}.loss_fn_inputs has no target_tokens.")
    if targets.is_floating_point():
        raise RequestFailure(f"{where}.target_tokens has float32 numbers: send int64 token ids.")
    _check_ids(targets, f"{where}.target_tokens", limits.vocabulary)
    for name, tensor in tensors.items():
        if tensor.shape != targets.shape:
            shapes = f"{list(tensor.shape)}, and target_tokens {list(targets.shape)}"
            raise RequestFailure(f'{where}.loss_fn_inputs["{name[:40]}"] has the shape {shapes}: send equal shapes.')
    return Datum(ids=ids, targets=targets, inputs={name: tensor.float() for name, tensor in tensors.items()})


def _read_tokens(chunks: Any, where: str) -> Tensor:
    parts = []
    for chunk in chunks:
        if not chunk.HasField("encoded_text"):
            raise not_offered(f"{where}: a chunk that is not text", "send images to a server of the model itself")
        if len(chunk.encoded_text.tokens) % 4:
            raise RequestFailure(f"{where} has {len(chunk.encoded_text.tokens)} bytes of tokens: send int32 ids.")
        parts.append(np.frombuffer(chunk.encoded_text.tokens, dtype=DTYPES[INT32]))
    return torch.from_numpy(np.concatenate(parts or [np.empty(0, np.int32)]).astype(np.int64))


def _check_ids(ids: Tensor, where: str, vocabulary: int) -> None:
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary:
        wrong = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
        raise RequestFailure(f"{where} has the token id {wrong}: ids of this model are 0 to {vocabulary - 1}.")


def _read_tensor(message: Any, where: str, positions: int) -> Tensor:
    """Return a dense tensor whose first dimension is the positions."""
    dtype, shape = DTYPES.get(message.dtype), tuple(message.shape)
    if dtype is None:
        raise RequestFailure(f"{where} has the dtype {message.dtype}: send float32 (1) or int64 (2).")
    if not shape and message.HasField("dense"):
        shape = (len(message.dense) // dtype.itemsize,)
    if not 0 < len(shape) <= MAX_RANK or shape[0] != positions or min(shape) < 1:
        raise RequestFailure(f"{where} has the shape {list(shape)}: send [{positions}] or [{positions}, K].")
    if len(shape) == MAX_RANK and shape[1] > MAX_TARGETS:
        raise RequestFailure(f"{where} has {shape[1]} targets at each position: send {MAX_TARGETS} at most.")
    values = _read_sparse(message.sparse_csr, dtype, shape, where) if message.HasField("sparse_csr") else None
    if values is None:
        if len(message.dense) != dtype.itemsize * int(np.prod(shape)):
            raise RequestFailure(f"{where} has {len(message.dense)} bytes, which do not fit its shape {list(shape)}.")
        values = np.frombuffer(message.dense, dtype=dtype).reshape(shape)
    if dtype.kind == "f" and not np.isfinite(values).all():
        raise RequestFailure(f"{where} has numbers that are not finite: send finite ones.")
    return torch.from_numpy(values.astype(np.float32 if dtype.kind == "f" else np.int64))


def _read_sparse(message: Any, dtype: np.dtype[Any], shape: tuple[int, ...], where: str) -> np.ndarray[Any, Any]:
    """Return the dense array of a matrix in compressed sparse rows; what it does not list is 0."""
    wrong = RequestFailure(f"{where} is not a sparse matrix of the shape {list(shape)}: send torch's CSR arrays.")
    indices = (message.crow_indices, message.col_indices)
    if len(shape) != MAX_RANK or len(message.values) % dtype.itemsize or any(len(part) % 8 for part in indices):
        raise wrong
    rows, columns = (np.frombuffer(part, dtype="<i8") for part in indices)
    values = np.frombuffer(message.values, dtype=dtype)
    fits = len(rows) == shape[0] + 1 and rows[0] == 0 and rows[-1] == len(values) == len(columns)
    if not fits or (np.diff(rows) < 0).any() or (columns < 0).any() or (columns >= shape[1]).any():
        raise wrong
    dense = np.zeros(shape, dtype)
    dense[np.repeat(np.arange(shape[0]), np.diff(rows)), columns] = values
    return dense
