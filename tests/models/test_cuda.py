"""Whether a CUDA device is possible is known without torch."""

import ctypes
import sys
from importlib import metadata

import pytest
import torch

from turnwise.models.loading.cuda import may_have_cuda
from turnwise.models.settings import ModelConfig
from turnwise.run.setting_names import check_cuda


@pytest.mark.parametrize(
    ("version", "platform", "has_driver", "expected"),
    [
        ("2.9.0+cpu", "linux", True, False),
        ("2.9.0", "linux", False, False),
        ("2.9.0", "linux", True, True),
        ("2.9.0+cu128", "linux", True, True),
        ("2.9.0+cu128", "win32", False, False),
        ("2.9.0+rocm6.4", "linux", False, True),
        ("2.9.0", "darwin", True, False),
    ],
)
def test_cuda_needs_a_build_and_a_driver(
    monkeypatch: pytest.MonkeyPatch, version: str, platform: str, has_driver: bool, expected: bool
) -> None:
    def load(name: str) -> object:
        assert name in ("libcuda.so.1", "nvcuda.dll")
        if not has_driver:
            raise OSError(name)
        return object()

    monkeypatch.setattr(metadata, "version", lambda name: version)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(ctypes, "CDLL", load)
    assert may_have_cuda() is expected


def test_cuda_devices_of_torch_are_never_ruled_out() -> None:
    if torch.cuda.is_available():
        assert may_have_cuda()
    check_cuda(ModelConfig(device="cpu"))
    check_cuda(ModelConfig(device="auto"))
