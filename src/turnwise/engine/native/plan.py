"""Which positions of the cache each token of a pass is written to and sees: the plan of one forward."""

import ctypes
from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from turnwise.engine.native.cache import KVCache, Stretch
from turnwise.engine.native.kernels import LANES, kernels, run
from turnwise.engine.native.rows import attend_in_rows
from turnwise.models.attention import AttentionCall


class CallStruct(ctypes.Structure):
    """`Call` of attention.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("heads", "kv", "size", "capacity", "first", "shared", "window")),
        ("scale", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("query", "key", "value")),
        *((f"{name}_{stride}", ctypes.c_int64) for name in ("query", "key", "value") for stride in ("token", "head")),
        *((name, ctypes.c_void_p) for name in ("keys", "values", "out")),
    )


class PassPlan:
    """New tokens of several sessions, packed in the order of the stretches.

    `shared`: so many positions are equal in all their slots, and are read from one of them. In layer `last`, only the
    tokens that are read look at others.
    """

    def __init__(self, cache: KVCache, stretches: Sequence[Stretch], shared: int = 0, last: int | None = None) -> None:
        self.cache, self.stretches, self.last = cache, stretches, last
        self.shared = shared // LANES * LANES
        self.positions = torch.tensor([place for each in stretches for place in range(each.past, each.past + each.new)])

    def attend(self, call: AttentionCall) -> Tensor:
        library = kernels()
        fits = call.query.dtype == torch.float32 and call.query.device.type == "cpu" and call.softcap is None
        if library is None or not fits or call.query.shape[-1] % LANES:
            return attend_in_rows(self.cache, self.stretches, call)
        keys, values = self.cache.layer(call)
        new = [each if each.stride(-1) == 1 else each.contiguous() for each in (call.query, call.key, call.value)]
        out = torch.empty(call.query.shape)
        about = CallStruct(
            *(call.query.shape[1], *keys.shape[1:], self.stretches[0].slot, self.shared, call.window or 0, call.scale),
            *(each.data_ptr() for each in new),
            *(stride for each in new for stride in each.stride()[:2]),
            *(each.data_ptr() for each in (keys, values, out)),
        )
        rows = self._rows(call.layer == self.last)
        run(library.attend, about, ctypes.c_void_p(rows.buffer_info()[0]), ctypes.c_int64(len(self.stretches)))
        return out

    def _rows(self, last: bool) -> "array[int]":
        """`Row` of attention.c, for each stretch."""
        rows, token = array("q"), 0
        for each in self.stretches:
            rows.extend((each.slot, each.past, each.new, each.new - each.read if last else 0, token))
            token += each.new
        return rows
