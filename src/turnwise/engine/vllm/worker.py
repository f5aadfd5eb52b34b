"""Loaded by vLLM's workers (`worker_extension_cls`): reads published weights from a safetensors file.

vLLM's own weight transfer backends need a GPU. This one serves CPUs, and servers that share a folder with the learner.
"""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from safetensors import safe_open
from torch import Tensor
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from turnwise.engine.vllm.weights import DRIVER_VARIABLE, base_name, name_in_vllm, wrapped_layers

WATCH_S = 1.0
BACKEND = "turnwise"
"""Name of this backend in vLLM's `weight_transfer_config`."""


@dataclass
class FileInit(WeightTransferInitInfo):
    """Nothing has to be agreed on beforehand."""


@dataclass
class FileUpdate(WeightTransferUpdateInfo):
    path: str
    """Safetensors file with parameters by their Hugging Face names."""
    frozen_path: str | None = None
    """File with further parameters; None: there are none, or an earlier update had them."""


class FileTransfer(WeightTransferEngine):
    init_info_cls = FileInit
    update_info_cls = FileUpdate

    def init_transfer_engine(self, init_info: FileInit) -> None:
        self._frozen: set[str] = set()

    def start_weight_update(self) -> None:
        parameters = (base_name(name) for name, _ in self.model.named_parameters())
        self._expected = {name for name in parameters if "lora_" not in name}
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load a file. The base class would synchronize an accelerator, which a CPU does not have."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: FileUpdate) -> None:
        """Raise if parameters are missing, which vLLM itself accepts: it would keep their old values."""
        if update_info.frozen_path is not None:
            self._frozen = self._load(update_info.frozen_path)
        loaded = self._load(update_info.path)
        if missing := sorted(self._expected - loaded - self._frozen):
            raise ValueError(
                f"{update_info.path} lacks {len(missing)} parameters of vLLM's model, such as {missing[0]}"
            )

    def _load(self, path: str) -> set[str]:
        """Load a file; return the names of the parameters in vLLM's model."""
        wrapped, packed = wrapped_layers(self.model), getattr(self.model, "packed_modules_mapping", {})
        named = ((name_in_vllm(name, wrapped, packed), tensor) for name, tensor in _read(path))
        return set(map(base_name, self.model.load_weights(named)))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        for layer in self.model.modules():
            if isinstance(layer, ParallelLMHead):  # vLLM does not repack a head that is tied to the embeddings
                layer.quant_method.process_weights_after_loading(layer)

    def shutdown(self) -> None:
        pass

    @staticmethod
    def trainer_send_weights(*_: Any) -> None:
        """vLLM 0.26 requires this method. The learner writes the file itself."""


def _read(path: str) -> Iterator[tuple[str, Tensor]]:
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118  (not a mapping)
            yield name, file.get_tensor(name)


class WorkerExtension:
    """Adds nothing to the worker: vLLM imports this module for it, which registers the backend."""


def _watch_driver(driver: int) -> None:
    """Wait until the process that started vLLM is gone; then end this worker and vLLM's engine, its parent."""
    engine = os.getppid()
    while Path(f"/proc/{driver}").exists():
        time.sleep(WATCH_S)
    if engine not in (driver, 1):
        os.kill(engine, signal.SIGKILL)
    os._exit(1)


WeightTransferEngineFactory.register_engine(BACKEND, FileTransfer)
if DRIVER_VARIABLE in os.environ:
    Thread(target=_watch_driver, args=(int(os.environ[DRIVER_VARIABLE]),), daemon=True).start()
