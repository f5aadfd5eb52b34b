"""Build the vLLM engine from the settings; check that the model and the machine fit."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from turnwise.core.errors import UserError
from turnwise.engine.options import EngineOptions
from turnwise.engine.vllm.engine import VllmEngine
from turnwise.engine.vllm.images import ImageReader
from turnwise.engine.vllm.installation import check_installation
from turnwise.engine.vllm.requests import Replica
from turnwise.engine.vllm.server import ServerReplica
from turnwise.engine.vllm.settings import VllmSettings
from turnwise.engine.vllm.weights import DRIVER_VARIABLE, FilePublisher, IpcPublisher, Publisher
from turnwise.models.loading.load import device_of
from turnwise.models.loading.lora import has_adapter
from turnwise.models.memory.estimate import MemoryEstimate
from turnwise.models.memory.shapes import model_shape
from turnwise.models.vision.encoder import image_encoder, vision_names
from turnwise.render.renderer import Renderer

ENVIRONMENT = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
CPU_ENVIRONMENT = {"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_CI_ENV": "1"}
"""Without these, the first request on a CPU waits a minute for compilation."""
GPU_ENVIRONMENT = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
"""CUDA IPC handles are pickled on their way to vLLM's own processes."""
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head sizes of vLLM's attention on CPUs. It starts with others too, and dies with the first request."""


def build_vllm(model: Any, renderer: Renderer, options: EngineOptions, settings: VllmSettings) -> VllmEngine:
    """Build the engine, in this process or on the servers of engine.urls. Nothing is started before its first use."""
    images = None if image_encoder(model) is None else ImageReader(model)
    if images is not None and settings.urls:
        raise UserError(
            "The servers of engine.urls read text only, and this model reads images. Leave engine.urls empty to run "
            "vLLM in this process, or choose engine native."
        )
    publisher = _publisher(model, settings)
    replicas: list[Replica] = [ServerReplica(url, max_tokens=options.max_tokens) for url in settings.urls]
    if not replicas:
        replicas = [_in_process(model, publisher.backend, options, settings)]
    return VllmEngine(model, replicas, publisher, stop_ids=renderer.stop_ids, decode=renderer.decode, images=images)


def _publisher(model: Any, settings: VllmSettings) -> Publisher:
    on_gpu = device_of(model).type == "cuda"
    if on_gpu and settings.tensor_parallel == 1 and not settings.urls and not has_adapter(model):
        if find_spec("ray") is None:
            raise UserError(
                "vLLM on a GPU needs Ray, which its transfer of weights by CUDA IPC imports. Run "
                "`pip install 'turnwise[ray]'`, or choose engine native."
            )
        return IpcPublisher(vision=vision_names(model))
    folder = None if settings.weights_folder is None else Path(settings.weights_folder).expanduser()
    merges = bool(settings.urls) or image_encoder(model) is not None
    return FilePublisher(model, folder, merges=merges, vision=vision_names(model))


def _in_process(model: Any, backend: str, options: EngineOptions, settings: VllmSettings) -> Replica:
    on_gpu = device_of(model).type == "cuda"
    check_installation()
    _check_model(model, options.max_tokens, on_gpu)
    for name, value in {**ENVIRONMENT, **(GPU_ENVIRONMENT if on_gpu else CPU_ENVIRONMENT)}.items():
        os.environ.setdefault(name, value)  # before vLLM is imported
    os.environ[DRIVER_VARIABLE] = str(os.getpid())
    from turnwise.engine.vllm.in_process import InProcessReplica, engine_arguments

    arguments = engine_arguments(
        model,
        slots=options.slots,
        max_tokens=options.max_tokens,
        tensor_parallel=settings.tensor_parallel,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        cache_bytes=_cache_bytes(model, options, settings.gpu_memory_utilization),
    )
    return InProcessReplica(model, backend=backend, arguments=arguments)


def _check_model(model: Any, max_tokens: int, on_gpu: bool) -> None:
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    head = model_shape(model).head_size
    if longest is not None and max_tokens > longest:
        raise UserError(
            f"rollout.max_tokens {max_tokens} is more than the {longest} positions of the model, which vLLM refuses. "
            "Lower it."
        )
    if not on_gpu and head not in CPU_HEAD_SIZES:
        raise UserError(
            f"vLLM's attention on a CPU has no heads of size {head}, as this model's are. Choose engine native."
        )


def _cache_bytes(model: Any, options: EngineOptions, share: float) -> int:
    """Return the size of the KV cache on a CPU: enough for all slots, within a share of the free memory."""
    cache = MemoryEstimate(shape=model_shape(model), compiled=False).kv_cache
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    wanted = min(cache(options.slots * options.max_tokens), int(share * free))
    return max(cache(2 * options.max_tokens), wanted)
