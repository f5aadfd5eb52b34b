"""vLLM started by this process: its engine and workers are child processes."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from vllm import AsyncEngineArgs, SamplingParams, TokensPrompt
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest
from vllm.lora.request import LoRARequest
from vllm.outputs import CompletionOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from turnwise.core.errors import UserError
from turnwise.engine.vllm.multimodal import image_prompt
from turnwise.engine.vllm.requests import ReplicaFailure, TokenChunk, TokenRequest, version_spans
from turnwise.engine.vllm.weights import PublishedWeights
from turnwise.models.loading.lora import has_adapter
from turnwise.models.vision.encoder import image_encoder, save_processor

WORKER_EXTENSION = "turnwise.engine.vllm.worker.WorkerExtension"
LORA = {"lora_name": "policy", "lora_int_id": 1}
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Maximum ranks that vLLM can be started with."""
DEAD = (EngineDeadError, EngineGenerateError)
MEMORY = ("weights", "kv_cache")
"""vLLM's names for the memory that it releases while it sleeps."""
REPORTS_VERSIONS = any(field.name == "weight_versions" for field in fields(CompletionOutput))
"""vLLM 0.26 does not: its tokens are streamed, and labelled when they arrive."""
IMAGE_ARGUMENTS = {
    "skip_tokenizer_init": False,  # vLLM's processor of images has a tokenizer
    "limit_mm_per_prompt": {"video": 0},  # else it plans memory for videos
    # Pixels come normalized. Versions after 0.26 would do it again in the model.
    **{field.name: False for field in fields(AsyncEngineArgs) if field.name == "mm_device_do_normalize"},
}


class InProcessReplica:
    """`arguments` are vLLM's engine arguments besides those that every engine of turnwise has.

    vLLM reads only the model's configuration from disk. It starts with random weights, which `load` replaces.
    """

    name = "vLLM"

    def __init__(self, model: Any, *, backend: str, arguments: dict[str, Any]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="turnwise-vllm-model-")
        model.config.save_pretrained(self._folder.name)
        save_processor(model, Path(self._folder.name))  # vLLM reads the largest size of an image from it
        self._reads_images = image_encoder(model) is not None
        self._arguments = arguments | {
            "model": self._folder.name,
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "generation_config": "vllm",
            "logprobs_mode": "processed_logprobs",
            "enable_prefix_caching": True,
            "worker_extension_cls": WORKER_EXTENSION,
            "weight_transfer_config": WeightTransferConfig(backend=backend),
            "disable_log_stats": True,
            **(IMAGE_ARGUMENTS if self._reads_images else {}),
        }
        self._llm: AsyncLLM | None = None
        self._adapter: LoRARequest | None = None
        self._frozen_part: int | None = None
        self._asleep: set[str] = set()

    async def start(self) -> None:
        await self.close()
        try:
            llm = await asyncio.to_thread(AsyncLLM.from_engine_args, AsyncEngineArgs(**self._arguments))
            self._llm, self._adapter, self._frozen_part, self._asleep = llm, None, None, set()
            await llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info={}))
        except Exception as error:  # of vLLM, its workers or pydantic: nothing here can be retried
            raise UserError(f"vLLM cannot run this model: {_reason(error)}. Choose engine native.") from error

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenChunk]:
        streams = request.streams or not REPORTS_VERSIONS
        kind = RequestOutputKind.DELTA if streams else RequestOutputKind.FINAL_ONLY
        prompt = TokensPrompt(prompt_token_ids=list(request.prompt), cache_salt=request.salt)
        if request.images:
            prompt = image_prompt(request)
        llm = self._running()
        try:
            await self._wake(llm)
            params = SamplingParams(**request.params(), output_kind=kind)
            async for output in llm.generate(prompt, params, request.id, lora_request=self._adapter):
                if output.finished and tuple(output.prompt_token_ids or ()) != request.prompt:
                    raise UserError("vLLM changed the tokens of a prompt. Choose engine native.")
                yield _chunk(output.outputs[0], output.finished)
        except DEAD as error:
            raise ReplicaFailure("its engine died") from error

    async def abort(self, request: TokenRequest) -> None:
        await self._running().abort(request.id)

    async def load(self, weights: PublishedWeights) -> None:
        llm = self._running()
        has_frozen = weights.frozen_part is not None and weights.frozen_part == self._frozen_part
        try:
            await self._wake(llm, ["weights"])
            await llm.pause_generation(mode="keep", clear_cache=False)
            if weights.adapter is None or self._adapter is None:
                info = weights.update_info(has_frozen=has_frozen)
                await llm.start_weight_update()
                await llm.update_weights(WeightTransferUpdateRequest(update_info=info))
                await llm.finish_weight_update()
                self._frozen_part = weights.frozen_part
            await self._wake(llm)
            if weights.adapter is not None:
                await llm.add_lora(LoRARequest(**LORA, lora_path=str(weights.adapter), load_inplace=True))
                self._adapter = LoRARequest(**LORA, lora_path=str(weights.adapter))
            if REPORTS_VERSIONS:
                await llm.update_weight_version(str(weights.version))
            # Running requests compute their keys and values again: those of the old weights are of another model.
            await llm.reset_prefix_cache(reset_running_requests=True)
            if self._reads_images and not has_frozen:  # features of the old vision tower
                await llm.reset_encoder_cache()
            await llm.resume_generation()
        except DEAD as error:
            raise ReplicaFailure("its engine died") from error
        except Exception as error:  # the model may be half loaded
            await self.close()
            raise UserError(f"vLLM cannot load the weights: {_reason(error)}. Choose engine native.") from error

    async def sleep(self) -> None:
        """Move the weights to host memory and drop the KV cache. On a CPU there is nothing to release."""
        if self._llm is None or not self._arguments.get("enable_sleep_mode"):
            return
        try:
            await self._llm.sleep(level=1)
        except DEAD as error:
            raise ReplicaFailure("its engine died") from error
        self._asleep = set(MEMORY)

    async def _wake(self, llm: AsyncLLM, memory: Sequence[str] = MEMORY) -> None:
        """Allocate memory that was released. vLLM fails if it wakes what is awake, so each kind is woken once."""
        asleep = [kind for kind in memory if kind in self._asleep]
        self._asleep.difference_update(asleep)  # before waiting: other requests arrive meanwhile
        if asleep:
            await llm.wake_up(asleep)

    async def close(self) -> None:
        if self._llm is not None:
            llm, self._llm = self._llm, None
            await asyncio.to_thread(llm.shutdown)

    def _running(self) -> AsyncLLM:
        if self._llm is None:
            raise ReplicaFailure("it is not running")
        return self._llm


def _chunk(output: CompletionOutput, finished: bool) -> TokenChunk:
    ids = tuple(output.token_ids)
    spans = (output.weight_versions if REPORTS_VERSIONS else None) or ()
    return TokenChunk(
        ids=ids,
        logprobs=tuple(row[token].logprob for row, token in zip(output.logprobs or (), ids, strict=True)),
        finished=finished,
        version_spans=version_spans((span.version, span.start, span.end) for span in spans),
    )


def _reason(error: Exception) -> str:
    """Return the first line that names the problem: pydantic puts it below a headline."""
    text = str(getattr(error, "errors", lambda: [{"msg": str(error)}])()[0]["msg"])
    return " ".join(text.partition("\n")[0].split()).rstrip(".")


def engine_arguments(
    model: Any, *, slots: int, max_tokens: int, tensor_parallel: int, gpu_memory_utilization: float, cache_bytes: int
) -> dict[str, Any]:
    """Return vLLM's engine arguments for the model's device. `cache_bytes`: KV cache on a CPU."""
    parameter = next(model.parameters())
    arguments = {
        "dtype": str(parameter.dtype).removeprefix("torch."),
        "max_model_len": max_tokens,
        "max_num_seqs": slots,
        "tensor_parallel_size": tensor_parallel,
        **_lora_arguments(model),
    }
    if parameter.device.type == "cuda":
        return arguments | {"gpu_memory_utilization": gpu_memory_utilization, "enable_sleep_mode": True}
    # On a CPU, vLLM dies when it prefills a prompt in parts and the request has a seed.
    return arguments | {"enforce_eager": True, "kv_cache_memory_bytes": cache_bytes, "enable_chunked_prefill": False}


def _lora_arguments(model: Any) -> dict[str, Any]:
    if not has_adapter(model) or image_encoder(model) is not None:  # that of a vision model is merged
        return {}
    ranks = [config.r for config in model.peft_config.values()]
    larger = [rank for rank in LORA_RANKS if rank >= max(ranks)]
    if not larger:
        raise UserError(f"vLLM serves adapters up to rank {LORA_RANKS[-1]}, and lora.rank is {max(ranks)}. Lower it.")
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": larger[0]}
