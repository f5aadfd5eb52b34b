"""Sleep and publications of vLLM in this process, against a stand-in for its engine.

vLLM itself sleeps only on a GPU.
"""

import asyncio
import importlib
import sys
from collections.abc import Iterator
from dataclasses import make_dataclass
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from turnwise.engine.vllm.requests import ReplicaFailure
from turnwise.models.loading.tiny import tiny_model

IMPORTED = {
    "vllm": ("SamplingParams", "TokensPrompt"),
    "vllm.config": (),
    "vllm.config.weight_transfer": ("WeightTransferConfig",),
    "vllm.distributed": (),
    "vllm.distributed.weight_transfer": (),
    "vllm.distributed.weight_transfer.base": ("WeightTransferInitRequest", "WeightTransferUpdateRequest"),
    "vllm.inputs": ("mm_input",),
    "vllm.lora": (),
    "vllm.lora.request": ("LoRARequest",),
    "vllm.multimodal": (),
    "vllm.multimodal.inputs": (
        "MultiModalFieldConfig",
        "MultiModalKwargsItem",
        "MultiModalKwargsItems",
        "PlaceholderRange",
    ),
    "vllm.outputs": (),
    "vllm.sampling_params": (),
    "vllm.v1": (),
    "vllm.v1.engine": (),
    "vllm.v1.engine.async_llm": ("AsyncLLM",),
    "vllm.v1.engine.exceptions": (),
}
MODULES = ("turnwise.engine.vllm.in_process", "turnwise.engine.vllm.multimodal")


class EngineDead(Exception):
    pass


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Import the module with names of vLLM that do nothing."""
    for name, found in IMPORTED.items():
        module = ModuleType(name)
        for each in found:
            setattr(module, each, lambda **values: SimpleNamespace(**values))
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["vllm"].AsyncEngineArgs = make_dataclass("AsyncEngineArgs", [])  # type: ignore[attr-defined]
    sys.modules["vllm.outputs"].CompletionOutput = make_dataclass("Output", [])  # type: ignore[attr-defined]
    kinds = SimpleNamespace(DELTA="delta", FINAL_ONLY="final")
    sys.modules["vllm.sampling_params"].RequestOutputKind = kinds  # type: ignore[attr-defined]
    for each in ("EngineDeadError", "EngineGenerateError"):
        setattr(sys.modules["vllm.v1.engine.exceptions"], each, EngineDead)
    yield importlib.import_module(MODULES[0])
    for each in MODULES:
        sys.modules.pop(each, None)


class SleepingLlm:
    """Stand-in for vLLM's engine: memory that is awake cannot be woken, and weights need memory that is awake."""

    def __init__(self) -> None:
        self.awake = {"weights", "kv_cache"}
        self.calls: list[str] = []
        self.dead = False

    async def sleep(self, level: int) -> None:
        if self.dead:
            raise EngineDead
        self.awake.clear()

    async def wake_up(self, tags: list[str] | None = None) -> None:
        await asyncio.sleep(0)
        woken = set(tags or ("weights", "kv_cache"))
        if woken & self.awake:
            raise RuntimeError("CUDA Error: invalid argument")  # mapped twice
        self.awake |= woken
        self.calls.append(f"wake {' '.join(sorted(woken))}")

    async def update_weights(self, request: Any) -> None:
        assert self.awake == {"weights"}, "the KV cache is allocated after the weights, which need room meanwhile"
        self.calls.append("update")

    async def generate(self, *_: Any, **__: Any) -> Any:
        assert self.awake == {"weights", "kv_cache"}
        yield SimpleNamespace(
            finished=True, prompt_token_ids=(1,), outputs=[SimpleNamespace(token_ids=(), logprobs=())]
        )

    def __getattr__(self, name: str) -> Any:
        async def call(*_: Any, **__: Any) -> None: ...

        return call


def sleeping_replica(in_process: Any) -> tuple[Any, SleepingLlm]:
    replica = in_process.InProcessReplica(tiny_model(), backend="turnwise", arguments={"enable_sleep_mode": True})
    replica._llm = SleepingLlm()
    return replica, replica._llm


async def request_turn(replica: Any) -> None:
    request = SimpleNamespace(prompt=(1,), images=(), streams=False, salt="", id="1", params=dict)
    async for _ in replica.generate(request):
        pass


def published(version: int, frozen_part: int | None = None) -> Any:
    """Return weights whose update_info has the version, and whether the frozen part is left out."""
    update_info = partial(dict, version=version)
    return SimpleNamespace(adapter=None, version=version, frozen_part=frozen_part, update_info=update_info)


def test_publication_wakes_the_weights_and_then_the_cache(in_process: Any) -> None:
    async def scenario(replica: Any) -> None:
        await replica.sleep()
        await replica.load(published(1))
        await asyncio.gather(*(request_turn(replica) for _ in range(3)))

    replica, llm = sleeping_replica(in_process)
    asyncio.run(scenario(replica))
    assert llm.calls == ["wake weights", "update", "wake kv_cache"]


def test_first_of_several_requests_wakes_a_sleeping_engine(in_process: Any) -> None:
    async def scenario(replica: Any) -> None:
        await replica.sleep()
        await request_turn(replica)
        await request_turn(replica)

    replica, llm = sleeping_replica(in_process)
    asyncio.run(scenario(replica))
    assert llm.calls == ["wake kv_cache weights"]


def test_engine_that_died_before_it_slept_is_a_replica_failure(in_process: Any) -> None:
    replica, llm = sleeping_replica(in_process)
    llm.dead = True
    with pytest.raises(ReplicaFailure, match="its engine died"):
        asyncio.run(replica.sleep())


def test_frozen_weights_are_sent_again_after_a_change_and_after_a_restart(
    in_process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[int, bool]] = []
    caches: list[int] = []

    class Llm(SleepingLlm):
        async def update_weights(self, request: Any) -> None:
            sent.append((request.update_info["version"], request.update_info["has_frozen"]))

        async def reset_encoder_cache(self) -> None:
            caches.append(sent[-1][0])

        def shutdown(self) -> None: ...

    async def scenario(replica: Any) -> None:
        await replica.start()
        for version, frozen_part in ((1, 1), (2, 1), (3, 2), (4, 2)):
            await replica.load(published(version, frozen_part))
        await replica.start()
        await replica.load(published(4, 2))
        for version in (5, 6):
            await replica.load(published(version, None))

    monkeypatch.setattr(in_process, "AsyncEngineArgs", lambda **values: values)
    monkeypatch.setattr(in_process, "AsyncLLM", SimpleNamespace(from_engine_args=lambda arguments: Llm()))
    replica = in_process.InProcessReplica(tiny_model(), backend="turnwise", arguments={})
    replica._reads_images = True
    asyncio.run(scenario(replica))
    assert sent == [(1, False), (2, True), (3, False), (4, True), (4, False), (5, False), (6, False)]
    assert caches == [1, 3, 4, 5, 6], "features of a tower that did not change stay valid"
