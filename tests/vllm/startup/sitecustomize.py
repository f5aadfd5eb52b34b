"""Run by Python at its start, in vLLM's processes too: lets torchvision be imported beside a torch for CPUs.

vLLM's vision models import torchvision. The wheels on PyPI are compiled for CUDA: without it their operators cannot be
loaded, and torchvision's import fails since they are not declared. Nothing here calls them.
"""

from importlib.metadata import PackageNotFoundError, distribution

import torch

try:
    package = distribution("torchvision").locate_file("torchvision")
except PackageNotFoundError:
    package = None
if package is not None and not torch.cuda.is_available():
    try:
        torch.ops.load_library(str(package / "_C.so"))
    except OSError:
        LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
