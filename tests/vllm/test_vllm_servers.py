"""A real `vllm serve` server, and a fake one that takes over when it is killed."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from turnwise.core.protocols import Completion, Sampling
from turnwise.core.trajectory import Stop
from turnwise.engine.vllm.engine import VllmEngine
from vllm_engines_for_tests import build_engine, key, max_error, renderer, wide_model
from vllm_server_for_tests import fake_vllm

START_S = 600.0
TOLERANCE = 2e-5
CONTEXT = list(range(5, 60))
OLD, NEW = wide_model(0), wide_model(1)
EXTENSION = "turnwise.engine.vllm.worker.WorkerExtension"
ARGUMENTS = {
    "dtype": "float32",
    "kv-cache-memory-bytes": "134217728",
    "max-model-len": "1024",
    "logprobs-mode": "processed_logprobs",
    "worker-extension-cls": EXTENSION,
    "weight-transfer-config": '{"backend": "turnwise"}',
}
VARIABLES = {"VLLM_SERVER_DEV_MODE": "1", "TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_CI_ENV": "1"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    folder = tmp_path_factory.mktemp("server")
    wide_model(7).save_pretrained(folder / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder / "model")]
    command += ["--port", str(port), "--tokens-only", "--enforce-eager"]
    command += [word for name, value in ARGUMENTS.items() for word in (f"--{name}", value)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, env=os.environ | VARIABLES, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        wait_until_ready(f"http://127.0.0.1:{port}", process, folder / "log")
        yield f"http://127.0.0.1:{port}", process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until_ready(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        try:
            if httpx2.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx2.RequestError:
            pass
        time.sleep(1)
    pytest.fail(f"the server did not start:\n{log.read_text(errors='replace')[-3000:]}")


async def turn(engine: VllmEngine, sampling: Sampling, member: int = 0) -> Completion:
    async with engine.open(key(member)) as session:
        return await session.generate(CONTEXT, sampling)


def test_server_samples_with_published_weights(server: tuple[str, "subprocess.Popen[bytes]"]) -> None:
    async def scenario(engine: VllmEngine) -> list[Completion]:
        await engine.publish(1, OLD)
        running = asyncio.create_task(turn(engine, Sampling(max_tokens=400), 1))
        await asyncio.sleep(0.3)
        found = await turn(engine, Sampling(max_tokens=20, temperature=0.6))
        await engine.publish(2, NEW)
        return [found, await turn(engine, Sampling(max_tokens=20)), await running]

    old, new, both = asyncio.run(scenario(build_engine(OLD, urls=(server[0],))))
    assert max_error(OLD, CONTEXT, old) < TOLERANCE
    assert max_error(NEW, CONTEXT, new) < TOLERANCE
    assert (set(old.policy_versions), set(new.policy_versions)) == ({1}, {2})
    before = both.policy_versions.count(1)
    assert before and max_error(OLD, CONTEXT, both, slice(before)) < TOLERANCE
    if before < len(both.ids):
        assert max_error(NEW, CONTEXT, both, slice(before, None)) < TOLERANCE


def test_server_stops_at_stop_strings(server: tuple[str, "subprocess.Popen[bytes]"]) -> None:
    async def scenario(engine: VllmEngine) -> tuple[Completion, Completion]:
        whole = await turn(engine, Sampling(max_tokens=200))
        stop = renderer().decode(list(whole.ids[5:7]))
        return whole, await turn(engine, Sampling(max_tokens=200, stop=(stop,)))

    whole, found = asyncio.run(scenario(build_engine(OLD, urls=(server[0],))))
    assert (found.stop, found.ids) == (Stop.STRING, whole.ids[: len(found.ids)])
    assert len(found.policy_versions) == len(found.ids) <= 7


def test_server_killed_in_a_call_is_replaced(
    server: tuple[str, "subprocess.Popen[bytes]"], caplog: pytest.LogCaptureFixture
) -> None:
    url, process = server

    async def scenario(engine: VllmEngine) -> list[Completion]:
        await engine.publish(5, OLD)
        turns = [asyncio.create_task(turn(engine, Sampling(max_tokens=900), member)) for member in range(4)]
        await asyncio.sleep(0.3)
        os.killpg(process.pid, signal.SIGKILL)
        return await asyncio.gather(*turns)

    with fake_vllm(lambda body: [8] * 900) as other:
        found = asyncio.run(scenario(build_engine(OLD, urls=(url, other.url))))
        assert len(other.generated) == 4, "two of its own and two that were running on the other"
    assert [each.ids for each in found] == [(8,) * 900] * 4
    assert caplog.text.count(f"{url} failed") == 1
