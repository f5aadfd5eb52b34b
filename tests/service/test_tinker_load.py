"""Many clients at once whose connections break: no request is lost, and none counts twice."""

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
from safetensors.torch import load_file

from tinker_for_tests import PROTOBUF, RawClient, datum, encode_request, read_logprobs, serving_tinker
from turnwise.record.run_folder import RunFolder

SOAK = int(os.environ.get("TURNWISE_SOAK", "1"))
CLIENTS = 4 if SOAK == 1 else 100
STEPS = 3 if SOAK == 1 else 20
"""Each is 5 calls and their retrievals."""
DATA = [datum(list(range(5, 25)))]


class UnreliableClient(RawClient):
    """Gives up on a call after a random time, often before the reply, and sends it again."""

    def __init__(self, url: str, seed: int) -> None:
        super().__init__(url)
        self._random, self.broken = random.Random(seed), 0

    def send(self, path: str, body: Any = None, **options: Any) -> httpx2.Response:
        while True:
            breaks = self._random.random() < 0.3
            try:
                options["timeout"] = self._random.uniform(0.001, 0.05) if breaks else 60
                return super().send(path, body, **dict(options))
            except httpx2.TimeoutException:
                self.broken += 1


def work(url: str, seed: int) -> tuple[str, list[bytes], int]:
    client = UnreliableClient(url, seed)
    model, replies = client.create_model(client.open_session()), list[bytes]()
    for step in range(STEPS):
        seq = 4 * step + 1
        for number in (seq, seq + 1):
            client.call("forward_backward", encode_request(model, number, DATA, "cross_entropy"), headers=PROTOBUF)
        replies += [
            read_logprobs(client.forward_backward(model, number, DATA, "cross_entropy")).tobytes()
            for number in (seq, seq + 1)
        ]
        assert client.step(model, seq + 2, learning_rate=1e-2)["metrics"]["skipped"] == 0
        sampler = client.sampler(model, seq + 3, step)
        replies.append(client.sample(sampler, 1, [5, 6], max_tokens=4, seed=1).sequences[0].tokens)
    client.result("save_weights", {"model_id": model, "seq_id": 4 * STEPS + 1, "path": "end"})
    return model, replies, client.broken


def test_clients_with_broken_connections_lose_nothing(tmp_path: Path) -> None:
    before = threading.active_count()
    with serving_tinker(tmp_path, max_models=8) as client, ThreadPoolExecutor(CLIENTS) as pool:
        finished = list(pool.map(lambda seed: work(client.url, seed), range(CLIENTS)))
    assert threading.active_count() <= before + 1
    assert sum(broken for _, _, broken in finished) > CLIENTS
    _, first_replies, _ = finished[0]
    folders = [tmp_path / model.replace(":", "-") for model, _, _ in finished]
    states = [load_file(folder / "checkpoints" / "weights" / "end" / "state.safetensors") for folder in folders]
    for (_, replies, _), folder, state in zip(finished, folders, states, strict=True):
        assert replies == first_replies
        assert [row["step"] for row in RunFolder.open(folder).read_metrics()] == list(range(1, STEPS + 1))
        assert all(bool((state[name] == states[0][name]).all()) for name in states[0])
