"""A vLLM server that the user started with `vllm serve --tokens-only`."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2

from turnwise.core.errors import UserError
from turnwise.core.protocols import Sampling
from turnwise.engine.vllm.requests import ReplicaFailure, TokenChunk, TokenRequest, version_spans
from turnwise.engine.vllm.weights import PublishedWeights

GENERATE = "/inference/v1/generate"
CONNECT_S, ANSWER_S = 10.0, 600.0
"""Seconds to connect, and between two parts of an answer."""
START_ADVICE = (
    "Start it with: VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --tokens-only --logprobs-mode processed_logprobs "
    "--worker-extension-cls turnwise.engine.vllm.worker.WorkerExtension "
    """--weight-transfer-config '{"backend": "turnwise"}'"""
)
MAX_DETAIL = 200
PROBE = TokenRequest(
    id="turnwise-probe",
    prompt=(0,),
    sampling=Sampling(max_tokens=1, top_k=1),
    stop_ids=(),
    seed=0,
    version=-1,
)
"""Top-k 1 leaves one token, whose log-probability is 0 unless the server reports it before top-k and temperature."""


class ServerReplica:
    def __init__(self, url: str, *, max_tokens: int) -> None:
        self.name = url.rstrip("/")
        self._max_tokens = max_tokens
        self._http: httpx2.AsyncClient | None = None

    async def start(self) -> None:
        await self.close()
        self._http = httpx2.AsyncClient(
            base_url=self.name,
            timeout=httpx2.Timeout(ANSWER_S, connect=CONNECT_S, pool=None),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
        )
        models = await self._request("GET", "/v1/models")
        longest = models["data"][0]["max_model_len"]
        if longest < self._max_tokens:
            raise UserError(
                f"{self.name} allows contexts of {longest} tokens, and rollout.max_tokens is {self._max_tokens}. Start "
                "it with a larger max-model-len, or lower rollout.max_tokens."
            )
        await self._post("/init_weight_transfer_engine", {"init_info": {}})
        answer = await self._post(GENERATE, _body(PROBE))
        if abs(answer["choices"][0]["logprobs"]["content"][0]["logprob"]) > 1e-3:
            raise UserError(f"{self.name} reports log-probabilities without the temperature. {START_ADVICE}")

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenChunk]:
        if not request.streams:
            yield _chunk(await self._post(GENERATE, _body(request)))
            return
        async for answer in self._stream(_body(request)):
            yield _chunk(answer)

    async def abort(self, request: TokenRequest) -> None:
        await self._post("/abort_requests", {"request_ids": [f"generate-tokens-{request.id}"]})

    async def load(self, weights: PublishedWeights) -> None:
        await self._post("/pause?mode=keep&clear_cache=false")
        await self._post("/start_weight_update")
        await self._post("/update_weights", {"update_info": weights.update_info()})
        await self._post("/finish_weight_update", {"weight_version": str(weights.version)})
        await self._post("/reset_prefix_cache?reset_running_requests=true")
        await self._post("/resume")

    async def sleep(self) -> None:
        """Do nothing: a server has its own GPU."""

    async def close(self) -> None:
        if self._http is not None:
            http, self._http = self._http, None
            await http.aclose()

    async def _post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return await self._request("POST", path, body)

    async def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        try:
            response = await self._client().request(method, path, json=body)
        except httpx2.RequestError as error:
            raise ReplicaFailure(f"{type(error).__name__}: {error}") from error
        self._check(path, response.status_code, response.content)
        return _read_json(response.content)

    async def _stream(self, body: dict[str, Any]) -> AsyncIterator[Any]:
        """Yield the events of a streamed answer, up to the last one."""
        try:
            async with self._client().stream("POST", GENERATE, json=body) as response:
                if response.status_code != 200:
                    self._check(GENERATE, response.status_code, await response.aread())
                async for line in response.aiter_lines():
                    data = line.removeprefix("data:").strip()
                    if data == "[DONE]":
                        return
                    if data:
                        yield _read_json(data.encode())
        except httpx2.RequestError as error:
            raise ReplicaFailure(f"{type(error).__name__}: {error}") from error
        raise ReplicaFailure("its answer was cut off")

    def _check(self, path: str, status: int, content: bytes) -> None:
        """Raise UserError for what a retry cannot fix, ReplicaFailure for failures of the server."""
        if status == 200:
            return
        detail = " ".join(content.decode(errors="replace").split())[:MAX_DETAIL]
        if status == 404:
            raise UserError(f"{self.name} has no {path.partition('?')[0]}. {START_ADVICE}")
        if status >= 500 and path != "/init_weight_transfer_engine":
            raise ReplicaFailure(f"it answered {status}: {detail}")
        raise UserError(f"{self.name} refused {path.partition('?')[0]} ({status}: {detail}). {START_ADVICE}")

    def _client(self) -> httpx2.AsyncClient:
        if self._http is None:
            raise ReplicaFailure("it is not connected")
        return self._http


def _body(request: TokenRequest) -> dict[str, Any]:
    return {
        "request_id": request.id,
        "token_ids": list(request.prompt),
        "sampling_params": request.params(),
        "cache_salt": request.salt,
        "stream": request.streams,
    }


def _read_json(content: bytes) -> Any:
    try:
        return json.loads(content) if content else {}
    except ValueError as error:
        raise ReplicaFailure("its answer is not JSON") from error


def _chunk(answer: Any) -> TokenChunk:
    """Read one answer. An answer of another form is a failure of the server."""
    try:
        choice = answer["choices"][0]
        finished = choice["finish_reason"] is not None
        ids, rows = choice["token_ids"], choice["logprobs"]["content"] or ()
        logprobs = tuple(row["logprob"] for row, _ in zip(rows, ids, strict=True))
        spans = tuple((span["version"], span["start"], span["end"]) for span in choice["weight_versions"] or ())
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ReplicaFailure(f"unexpected answer {str(answer)[:MAX_DETAIL]}") from error
    return TokenChunk(ids=tuple(ids), logprobs=logprobs, finished=finished, version_spans=version_spans(spans))
