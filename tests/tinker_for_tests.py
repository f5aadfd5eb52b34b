"""The training service with the tiny model, in a thread of a test or in a process, and a raw client of it."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

from turnwise.config.load import build
from turnwise.run.tinker_serving import build_base_model
from turnwise.service.tinker.messages import FLOAT32, INT64, MESSAGES
from turnwise.service.tinker.server import TinkerServer
from turnwise.service.tinker.service import Service

KEY = "tml-test-key-0001"
OTHER_KEY = "tml-test-key-0002"
PROTOBUF = {"Content-Type": "application/x-protobuf"}
PATIENCE_S = 120.0


class RawClient:
    """Sends requests that a test writes. `url`: of the server."""

    def __init__(self, url: str, key: str = KEY) -> None:
        self.url, self.key = url, key
        self._http = httpx2.Client(trust_env=False, timeout=60)

    def send(self, path: str, body: Any = None, *, method: str = "POST", **options: Any) -> httpx2.Response:
        headers = {"X-API-Key": self.key, **options.pop("headers", {})}
        if isinstance(body, bytes):
            options["content"] = body
        elif body is not None:
            options["json"] = body
        return self._http.request(method, f"{self.url}/api/v1/{path}", headers=headers, **options)

    def call(self, path: str, body: Any = None, **options: Any) -> dict[str, Any]:
        response = self.send(path, body, **options)
        assert response.status_code == 200, response.text
        reply: dict[str, Any] = response.json()
        return reply

    def wait(self, promise: Mapping[str, Any]) -> httpx2.Response:
        """Retrieve a result, as often as the server says to try again."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            response = self.send("retrieve_future", {"request_id": promise["request_id"]})
            if response.status_code != 408:
                return response
        raise AssertionError("no result")

    def result(self, path: str, body: Any, **options: Any) -> dict[str, Any]:
        """Return the JSON result of a request."""
        reply: dict[str, Any] = self.wait(self.call(path, body, **options)).json()
        return reply

    def open_session(self) -> str:
        session: str = self.call("create_session", {"tags": [], "user_metadata": {}, "sdk_version": "0.36.0"})[
            "session_id"
        ]
        return session

    def create_model(self, session: str, number: int = 0, rank: int | None = 4, **lora: Any) -> str:
        body: dict[str, Any] = {"session_id": session, "model_seq_id": number, "base_model": "tiny"}
        if rank is not None:
            body["lora_config"] = {"rank": rank, "seed": 1, **lora}
        reply = self.result("create_model", body)
        assert "error" not in reply, reply
        model: str = reply["model_id"]
        return model

    def forward_backward(self, model: str, seq: int, data: Sequence[Any], loss: str, **options: Any) -> Any:
        """Return the output message, or the JSON of the failure."""
        body = encode_request(model, seq, data, loss, **options)
        response = self.wait(self.call("forward_backward", body, headers=PROTOBUF))
        if response.headers["content-type"] != "application/x-protobuf":
            return response.json()
        return MESSAGES["ForwardBackwardOutput"].FromString(response.content)

    def step(self, model: str, seq: int, **adam: float) -> dict[str, Any]:
        return self.result("optim_step", {"model_id": model, "seq_id": seq, "adam_params": adam})

    def sampler(self, model: str, seq: int, number: int = 0) -> str:
        body = {"model_id": model, "seq_id": seq, "sampling_session_seq_id": number}
        session: str = self.result("save_weights_for_sampler", body)["sampling_session_id"]
        return session

    def sample(self, sampler: str, seq: int, prompt: Sequence[int], **options: Any) -> Any:
        """Return the response message, or the JSON of the failure."""
        params = {name: options.pop(name) for name in ("max_tokens", "seed", "stop", "temperature") if name in options}
        chunks = [{"type": "encoded_text", "tokens": list(prompt)}]
        body = {"sampling_session_id": sampler, "seq_id": seq, "prompt": {"chunks": chunks}, "sampling_params": params}
        response = self.wait(self.call("asample", body | options))
        if response.headers["content-type"] != "application/x-protobuf":
            return response.json()
        return MESSAGES["SampleResponse"].FromString(response.content)


def datum(ids: Sequence[int], **inputs: Any) -> tuple[Sequence[int], dict[str, np.ndarray[Any, Any]]]:
    """Return a datum whose targets are the next ids, unless they are given."""
    arrays = {name: np.asarray(values) for name, values in inputs.items()}
    if "target_tokens" not in arrays:
        arrays["target_tokens"], ids = np.asarray(ids[1:]), ids[:-1]
    return ids, arrays


def encode_request(model: str, seq: int, data: Sequence[Any], loss: str, **options: Any) -> bytes:
    message = MESSAGES["ForwardBackwardRequest"](model_id=model, seq_id=seq, loss_fn=loss)
    message.forward_only = options.get("forward_only", False)
    for name, value in options.get("config", {}).items():
        message.loss_fn_config_v2[name].number = value
    for ids, inputs in data:
        encoded = message.data.add()
        encoded.model_input.add().encoded_text.tokens = np.asarray(ids, np.int32).tobytes()
        for name, values in inputs.items():
            floats = values.dtype.kind == "f"
            tensor = encoded.loss_fn_inputs[name]
            tensor.dtype = FLOAT32 if floats else INT64
            tensor.shape.extend(values.shape)
            tensor.dense = values.astype(np.float32 if floats else np.int64).tobytes()
    body: bytes = message.SerializeToString()
    return body


def read_logprobs(output: Any) -> np.ndarray[Any, Any]:
    """Return the log-probabilities of all data of an output, one after the other."""
    parts = []
    for record in output.loss_fn_outputs:
        tensor = record.fields["logprobs"]
        offsets = np.frombuffer(tensor.offsets, np.int64)
        assert len(offsets) == record.num_datums + 1
        parts += [np.frombuffer(tensor.data[start:end], np.float32) for start, end in pairwise(offsets)]
    return np.concatenate(parts)


@contextmanager
def serving_tinker(folder: Path, keys: Mapping[str, str] | None = None, **settings: Any) -> Iterator[RawClient]:
    """Serve from a thread. `settings`: of the BaseModel."""
    ready, stop = threading.Event(), threading.Event()
    served: list[Any] = []

    async def run() -> None:
        overrides = [("model.name", "tiny"), ("system.threads", "1")]
        base, tokenizer = build_base_model(build({}, overrides), overrides, folder)
        service = Service(replace(base, **settings), folder, tokenizer)
        async with TinkerServer(service, keys or {"default": KEY}) as server:
            served.append(server)
            ready.set()
            await asyncio.to_thread(stop.wait)

    def serve() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            served.append(error)
            ready.set()
            raise

    folder.mkdir(parents=True, exist_ok=True)
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert ready.wait(PATIENCE_S)
        assert isinstance(served[0], TinkerServer), served
        yield RawClient(served[0].url)
    finally:
        stop.set()
        thread.join()


@contextmanager
def served_process(folder: Path, *arguments: str, model: str = "tiny") -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start `turnwise serve --tinker` and yield its address and process. Kills it at the end."""
    command = (sys.executable, "-m", "turnwise", "serve", "--tinker", "--model.name", model, "--system.threads", "1")
    options = ("--api-key", KEY, "--out", str(folder), *arguments)
    child = subprocess.Popen(
        (*command, *(options if "--port" in arguments else (*options, "--port", "0"))),
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    try:
        assert child.stdout is not None
        url = ""
        for line in child.stdout:
            url = line.partition("TINKER_BASE_URL=")[2].strip() or url
            if line.startswith("serving"):
                break
        assert url, "the server did not start"
        yield url, child
    finally:
        with suppress(ProcessLookupError):
            child.send_signal(signal.SIGKILL)
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
