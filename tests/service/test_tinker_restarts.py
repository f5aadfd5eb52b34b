"""kill -9 of the training service at random moments: clients that repeat their requests lose nothing."""

import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import numpy as np
import pytest
from safetensors.torch import load_file

from tinker_for_tests import RawClient, datum, read_logprobs, served_process, serving_tinker
from turnwise.network.ports import listen
from turnwise.record.run_folder import RunFolder

Reply = TypeVar("Reply")
SOAK = int(os.environ.get("TURNWISE_SOAK", "1"))
KILLS = 1 if SOAK == 1 else 50
STEPS = 6
PATIENCE_S = 120.0


def free_port() -> int:
    with listen("127.0.0.1", 0) as listener:
        port: int = listener.getsockname()[1]
        return port


def program(client: RawClient, attempt: Callable[[Callable[[], Any]], Any]) -> list[bytes]:
    """Train, sample and save; return everything that the server replied."""
    session = attempt(client.open_session)
    model = attempt(lambda: client.create_model(session))
    replies, seq = list[bytes](), 0
    for step in range(STEPS):
        for _ in range(2):
            seq += 1
            data = [datum(list(range(5 + step, 45 + step)))]
            output = attempt(lambda data=data, seq=seq: client.forward_backward(model, seq, data, "cross_entropy"))
            replies.append(read_logprobs(output).tobytes())
        seq += 1
        metrics = attempt(lambda seq=seq: client.step(model, seq, learning_rate=1e-2))["metrics"]
        replies.append(repr(metrics).encode())
        seq += 1
        sampler = attempt(lambda seq=seq, step=step: client.sampler(model, seq, number=step))
        response = attempt(lambda sampler=sampler: client.sample(sampler, 1, [5, 6, 7], max_tokens=24, seed=3))
        replies.append(response.sequences[0].tokens)
    path = attempt(lambda: client.result("save_weights", {"model_id": model, "seq_id": seq + 1, "path": "end"}))["path"]
    replies.append(path.rpartition("/")[2].encode())
    return replies


def final_state(folder: Path) -> dict[str, Any]:
    (file,) = folder.glob("*-train-0/checkpoints/weights/end/state.safetensors")
    return load_file(file)


def retry(call: Callable[[], Reply]) -> Reply:
    """Repeat a call until the server is there, as the SDK does."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except httpx2.TransportError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def test_killed_server_continues_with_the_same_bits(tmp_path: Path) -> None:
    chance = random.Random(0)
    with serving_tinker(tmp_path / "calm") as client:
        calm = program(client, lambda call: call())
    port = free_port()
    kills = sorted(chance.sample(range(2, 5 * STEPS), min(KILLS, 5 * STEPS - 2)))
    calls, servers = 0, []

    def start() -> None:
        server = served_process(tmp_path / "killed", "--port", str(port))
        _, child = server.__enter__()
        servers.append((server, child))

    def attempt(call: Callable[[], Any]) -> Any:
        nonlocal calls
        calls += 1
        if kills and calls >= kills[0]:
            kills.pop(0)
            # the request is on its way when the server dies; `call` is repeated as it was
            with ThreadPoolExecutor(1) as pool:
                running = pool.submit(retry, call)
                time.sleep(chance.uniform(0.0, 0.05))
                servers[-1][1].kill()
                servers[-1][0].__exit__(None, None, None)
                start()
                return running.result(PATIENCE_S)
        return retry(call)

    start()
    try:
        killed = program(RawClient(f"http://127.0.0.1:{port}"), attempt)
    finally:
        servers[-1][0].__exit__(None, None, None)
    assert not kills and killed == calm
    first, second = final_state(tmp_path / "calm"), final_state(tmp_path / "killed")
    assert first.keys() == second.keys() and all(bool((first[name] == second[name]).all()) for name in first)
    (folder,) = (tmp_path / "killed").glob("*-train-0")
    assert [row["step"] for row in RunFolder.open(folder).read_metrics()] == list(range(1, STEPS + 1))


def test_restart_repeats_failures_too(tmp_path: Path) -> None:
    """Weights that diverged are not trained on after a restart, and refused data have no gradient."""
    data = [datum(list(range(9)))]
    with serving_tinker(tmp_path) as client:
        model = client.create_model(client.open_session())
        client.forward_backward(model, 1, data, "cross_entropy")
        assert "has no logprobs" in client.forward_backward(model, 2, data, "ppo")["error"]
        assert "not finite" in client.step(model, 3, learning_rate=1e39)["error"]
    with serving_tinker(tmp_path) as client:
        assert "load a checkpoint" in client.forward_backward(model, 4, data, "cross_entropy")["error"]


def test_restart_continues_from_a_saved_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """States are saved after every step, so no request runs again."""
    monkeypatch.setattr("turnwise.service.tinker.backend.SAVE_AFTER_REQUESTS", 1)
    outputs = []
    for restart in (True, False):
        folder = tmp_path / str(restart)
        with serving_tinker(folder) as client:
            session = client.open_session()
            model = client.create_model(session)
            client.forward_backward(model, 1, [datum(list(range(9)))], "cross_entropy")
            done = client.step(model, 2, learning_rate=1e-2)
            if not restart:
                outputs.append(client.forward_backward(model, 3, [datum(list(range(9)))], "cross_entropy"))
        if restart:
            with serving_tinker(folder) as client:
                again = client.send("retrieve_future", {"request_id": f"{model}:2"}).json()
                assert again == done
                assert client.create_model(session) == model
                outputs.append(client.forward_backward(model, 3, [datum(list(range(9)))], "cross_entropy"))
            assert len(list((folder / model.replace(":", "-") / "states").glob("state-*"))) == 1
    assert np.array_equal(read_logprobs(outputs[0]), read_logprobs(outputs[1]))
