"""The API's calls: sessions, models, samplers, requests and their futures. Knows no HTTP."""

import asyncio
import json
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turnwise.core.random_streams import address
from turnwise.files.disk import FolderLock
from turnwise.service.tinker import bodies
from turnwise.service.tinker.adapters import LoraShape
from turnwise.service.tinker.backend import Backend, BaseModel, model_id, read_spec, sampler_id, write_spec
from turnwise.service.tinker.datums import parse_forward_backward
from turnwise.service.tinker.errors import ApiError, RequestFailure
from turnwise.service.tinker.external import Downloads
from turnwise.service.tinker.futures import Futures
from turnwise.service.tinker.sampling import SampleRequest
from turnwise.service.tinker.saved_weights import WeightsPath, now, timestamp
from turnwise.service.tinker.store import RequestStore, Result, StoredModel, StoredRequest, hash_body
from turnwise.service.tinker.trained_model import ModelSpec
from turnwise.service.tinker.worker import Worker

STORE_FILE = "service.sqlite"
MAX_WAITING = 4096
"""Requests of one model or sampler that have no result yet."""

MAX_METADATA = 64 << 10
KEEP_RESULTS_S, DROP_EVERY = 600.0, 256
"""Results are kept for this time after they were retrieved, in case the reply was lost. Counted in retrievals."""

Json = dict[str, Any]


class Service:
    """`async with Service(base, folder) as service`. A folder has one server at a time."""

    def __init__(self, base: BaseModel, folder: Path, tokenizer_id: str) -> None:
        self.base, self._folder, self._tokenizer_id = base, folder, tokenizer_id
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = FolderLock(folder, chosen_by="--out")
        self._store = RequestStore(folder / STORE_FILE)
        self._backend = Backend(base, self._store, folder)
        self.downloads = Downloads(self._backend.weights)
        self._last_seq: dict[str, int] = {}
        self._waiting: dict[str, int] = {}
        self._retrievals = 0

    async def __aenter__(self) -> "Service":
        self._futures, loop = Futures(self._store), asyncio.get_running_loop()

        def on_done(request: str) -> None:
            loop.call_soon_threadsafe(self._done, request)

        self._worker = Worker(self._backend, self._store, self._sampler_path, on_done)
        for request in self._store.unfinished():
            self._enqueue(request)
        self._worker.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._worker.stop()
        self._store.close()
        self._lock.release()

    def _done(self, request: str) -> None:
        self._waiting[_parent_of(request)] -= 1
        self._futures.notify(request)

    def _sampler_path(self, request: StoredRequest) -> str | None:
        sampler = self._store.sampler(request.parent, request.owner)
        return None if sampler is None else sampler.path

    def create_session(self, owner: str, body: bodies.CreateSession) -> Json:
        session = secrets.token_hex(16)
        self._store.add_session(session, owner)
        return {
            "type": "create_session",
            "session_id": session,
            "info_message": None,
            "warning_message": None,
            "error_message": None,
        }

    def check_session(self, owner: str, session: str) -> None:
        state = self._store.session_state(session, owner)
        if state is None:
            raise ApiError(404, f"There is no session {session[:100]}: create one.")
        if state == "finished":
            raise ApiError(410, f"The session {session[:100]} is finished: create one.")

    def heartbeat(self, owner: str, body: bodies.SessionBody) -> Json:
        self.check_session(owner, body.session_id)
        return {"type": "session_heartbeat"}

    def finish_session(self, owner: str, session: str) -> Json:
        self.check_session(owner, session)
        self._store.finish_session(session)
        return {}

    def create_model(self, owner: str, body: bodies.CreateModel) -> Json:
        self.check_session(owner, body.session_id)
        self._check_base(body.base_model)
        _check_optimizer(body.optimizer_config)
        model, lora = model_id(body.session_id, body.model_seq_id), body.lora_config
        shape = None
        if lora is not None:
            shape = LoraShape(
                rank=lora.rank,
                train_attn=lora.train_attn,
                train_mlp=lora.train_mlp,
                train_unembed=lora.train_unembed,
            )
            _as_api_error(shape.check)
        seed = lora.seed if lora is not None and lora.seed is not None else address("tinker model", model)
        self._store.add_model(model, owner, write_spec(ModelSpec(shape=shape, seed=seed % 2**63)), _as_metadata(body))
        return self._accept(owner, model, 0, "create_model", body.model_dump_json().encode())

    def load_weights(self, owner: str, body: bodies.LoadWeights) -> Json:
        """Load weights into a model, or create one from them as the first request of a new model."""
        raw = body.model_dump_json().encode()
        if body.weights_access_token is not None:
            raise ApiError(400, "weights_access_token is not offered: load weights with the key of their owner.")
        if body.model_id is not None and body.seq_id is not None:
            return self.submit(owner, body.model_id, body.seq_id, "load_weights", raw)
        if body.session_id is None or body.model_seq_id is None:
            raise ApiError(400, "load_weights needs model_id and seq_id, or session_id and model_seq_id.")
        self.check_session(owner, body.session_id)
        self._check_base(body.base_model)
        _check_optimizer(body.optimizer_config)
        info = self._backend.weights.info(self.find_weights(owner, body.path))
        model = model_id(body.session_id, body.model_seq_id)
        self._store.add_model(model, owner, write_spec(info.spec), _as_metadata(body))
        return self._accept(owner, model, 0, "load_weights", raw)

    def _check_base(self, name: str | None) -> None:
        if name is not None and name != self.base.name:
            raise ApiError(400, f'The base model "{name[:100]}" is not served: use "{self.base.name}".')

    def find_model(self, owner: str, model: str) -> StoredModel:
        """Return a model of the owner. Raises ApiError."""
        stored = self._store.model(model, owner)
        if stored is None:
            raise ApiError(404, f"There is no model {model[:100]}: create one.")
        return stored

    def forward_backward(self, owner: str, body: bytes) -> Json:
        message = parse_forward_backward(body)
        return self.submit(owner, message.model_id, message.seq_id, "forward_backward", body)

    def submit(self, owner: str, model: str, seq: int, kind: str, body: bytes) -> Json:
        """Accept a request that runs after those of the model with a lower `seq`."""
        if self.find_model(owner, model).unloaded:
            raise ApiError(400, f"The model {model[:100]} was unloaded: create one from its saved weights.")
        if seq < 1:
            raise ApiError(422, f"seq_id is {seq}: number the requests of a model from 1.")
        return self._accept(owner, model, seq, kind, body)

    def unload(self, owner: str, body: bodies.ModelBody) -> Json:
        self.find_model(owner, body.model_id)
        return self._accept(owner, body.model_id, self._last(body.model_id) + 1, "unload_model", b"{}")

    def _last(self, parent: str) -> int:
        if parent not in self._last_seq:
            self._last_seq[parent] = self._store.last_seq(parent)
        return self._last_seq[parent]

    def _accept(self, owner: str, parent: str, seq: int, kind: str, body: bytes) -> Json:
        """Store and enqueue a request, unless it was accepted before; return its promise."""
        identity = f"{parent}:{seq}"
        promise: Json = {"request_id": identity, "model_id": parent}
        known = self._store.digest(identity, owner)
        if known is not None:
            if known != hash_body(body):
                raise ApiError(400, f"seq_id {seq} was another request: number each request once.")
            return promise
        if kind != "sample" and 0 < seq <= self._last(parent):
            raise ApiError(400, f"seq_id {seq} came after {self._last(parent)}: send requests in their order.")
        if self._waiting.get(parent, 0) >= MAX_WAITING:
            raise ApiError(429, f"{MAX_WAITING} requests are waiting: retrieve their results first.")
        request = StoredRequest(id=identity, owner=owner, parent=parent, seq=seq, kind=kind, body=body)
        self._store.accept(request)
        self._last_seq[parent] = max(self._last(parent), seq)
        self._enqueue(request)
        return promise

    def _enqueue(self, request: StoredRequest) -> None:
        self._waiting[request.parent] = self._waiting.get(request.parent, 0) + 1
        self._worker.submit(request)

    def create_sampler(self, owner: str, body: bodies.CreateSamplingSession) -> Json:
        self.check_session(owner, body.session_id)
        if body.model_path is None and body.base_model is None:
            raise ApiError(400, "create_sampling_session needs a model_path or a base_model.")
        self._check_base(body.base_model)
        if body.model_path is not None:
            self.find_weights(owner, body.model_path)
        sampler = sampler_id(body.session_id, body.sampling_session_seq_id)
        self._store.add_sampler(sampler, owner, body.model_path)
        return {"type": "create_sampling_session", "sampling_session_id": sampler}

    def find_weights(self, owner: str, text: str) -> WeightsPath:
        """Return the path of weights that the owner has. Raises ApiError."""
        path = WeightsPath.parse(text)
        self.find_model(owner, path.model)
        _as_api_error(lambda: self._backend.weights.info(path), status=404)
        return path

    def find_sampler(self, owner: str, sampler: str) -> str | None:
        """Return the path of a sampler's weights. Raises ApiError."""
        stored = self._store.sampler(sampler, owner)
        if stored is None:
            raise ApiError(404, f"There is no sampling session {sampler[:100]}: create one.")
        return stored.path

    def join_sampler(self, owner: str, body: bodies.SamplingSessionBody) -> Json:
        self.find_sampler(owner, body.sampling_session_id)
        counter = self._store.add_clone(body.sampling_session_id)
        return {"type": "join_sampling_session", "client_counter": counter}

    def describe_sampler(self, owner: str, sampler: str) -> Json:
        path = self.find_sampler(owner, sampler)
        return {"sampler_id": sampler, "base_model": self.base.name, "model_path": path}

    def sample(self, owner: str, body: SampleRequest, raw: bytes) -> Json:
        if body.sampling_session_id is None or body.seq_id is None:
            raise ApiError(400, "asample needs sampling_session_id and seq_id: create a sampling session.")
        self.find_sampler(owner, body.sampling_session_id)
        promise = self._accept(owner, body.sampling_session_id, body.seq_id, "sample", raw)
        ids = [f"{promise['request_id']}-{number}" for number in range(body.num_samples)]
        return {"request_id": promise["request_id"], "sample_sequence_ids": ids}

    async def retrieve(self, owner: str, body: bodies.RetrieveFuture) -> Result | None:
        result = await self._futures.result(body.request_id, owner)
        if result is not None:
            self._note_retrieved(body.request_id)
        return result

    def _note_retrieved(self, request: str) -> None:
        now = time.time()
        self._store.set_retrieved(request, now)
        self._retrievals += 1
        if self._retrievals % DROP_EVERY == 0:
            self._store.drop_retrieved(before=now - KEEP_RESULTS_S)

    def describe_model(self, owner: str, body: bodies.ModelBody) -> Json:
        shape = read_spec(self.find_model(owner, body.model_id).spec).shape
        data = {
            "arch": type(self.base.loaded.model).__name__,
            "model_name": self.base.name,
            "tokenizer_id": self._tokenizer_id,
        }
        return {
            "type": "get_info",
            "model_id": body.model_id,
            "model_data": data,
            "model_name": self.base.name,
            "is_lora": shape is not None,
            "lora_rank": None if shape is None else shape.rank,
        }

    def capabilities(self) -> Json:
        model = {
            "model_name": self.base.name,
            "max_context_length": self.base.max_tokens,
            "trainable": True,
            "sampleable": True,
        }
        return {"supported_models": [model]}

    def weights_info(self, owner: str, body: bodies.WeightsInfoBody) -> Json:
        shape = self._backend.weights.info(self.find_weights(owner, body.tinker_path)).spec.shape
        if shape is None:
            return {"base_model": self.base.name, "is_lora": False}
        return {
            "base_model": self.base.name,
            "is_lora": True,
            "lora_rank": shape.rank,
            "train_unembed": shape.train_unembed,
            "train_mlp": shape.train_mlp,
            "train_attn": shape.train_attn,
        }

    def training_runs(self, owner: str, limit: int, offset: int) -> Json:
        models = self._store.models_of(owner)
        runs = [self.training_run(owner, model) for model in models[offset : offset + limit]]
        return {"training_runs": runs, "cursor": {"offset": offset, "limit": limit, "total_count": len(models)}}

    def training_run(self, owner: str, model: str) -> Json:
        stored, weights = self.find_model(owner, model), self._backend.weights
        shape, saved = read_spec(stored.spec).shape, weights.list(model)
        latest = {checkpoint["checkpoint_type"]: checkpoint for checkpoint in saved}
        folder = weights.model_folder(model)
        return {
            "training_run_id": model,
            "base_model": self.base.name,
            "model_owner": owner,
            "is_lora": shape is not None,
            "lora_rank": None if shape is None else shape.rank,
            "last_request_time": now() if not folder.exists() else timestamp(folder.stat().st_mtime),
            "last_checkpoint": latest.get("training"),
            "last_sampler_checkpoint": latest.get("sampler"),
            "user_metadata": json.loads(stored.metadata),
        }

    def sign_files(self, owner: str, text: str, address: str) -> Json:
        return self.downloads.sign(self.find_weights(owner, text), address)

    def checkpoints(self, owner: str, model: str) -> Json:
        self.find_model(owner, model)
        return {"checkpoints": self._backend.weights.list(model), "cursor": None}

    def delete_checkpoint(self, owner: str, model: str, checkpoint: str) -> Json:
        self._backend.weights.delete(self.find_weights(owner, f"tinker://{model}/{checkpoint}"))
        return {}


def _as_metadata(body: bodies.CreateModel | bodies.LoadWeights) -> str:
    metadata = json.dumps({name: str(value) for name, value in (body.user_metadata or {}).items()})
    if len(metadata) > MAX_METADATA:
        raise ApiError(400, f"user_metadata has {len(metadata)} characters: send {MAX_METADATA} at most.")
    return metadata


def _check_optimizer(config: bodies.OptimizerConfig | None) -> None:
    if config is not None and config.type != "adamw":
        raise ApiError(400, f"The optimizer {config.type[:40]} is not offered: use adamw.")


def _as_api_error(call: Callable[[], object], status: int = 400) -> None:
    try:
        call()
    except RequestFailure as failure:
        raise ApiError(status, str(failure)) from failure


def _parent_of(request: str) -> str:
    return request.rpartition(":")[0]
