"""Runs requests on the models, one after the other in one thread: training, saving, loading, sampling."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from turnwise.core.protocols import Engine
from turnwise.files.disk import atomic_folder, remove_folder
from turnwise.models.loading.load import LoadedModel
from turnwise.models.memory.host import available_memory
from turnwise.service.tinker.adapters import LoraShape, SharedModel
from turnwise.service.tinker.bodies import LoadWeights, OptimStep, SaveExternal, SaveForSampler, SaveWeights
from turnwise.service.tinker.datums import InputLimits, parse_forward_backward, read_forward_backward
from turnwise.service.tinker.errors import RequestFailure, not_offered
from turnwise.service.tinker.external import write_external
from turnwise.service.tinker.run_folders import ModelRun
from turnwise.service.tinker.samplers import Samplers
from turnwise.service.tinker.sampling import SampleJob, SampleRequest
from turnwise.service.tinker.saved_weights import (
    SESSION_PREFIX,
    STATE_FILE,
    SavedWeights,
    WeightsInfo,
    WeightsPath,
    check_name,
    now,
)
from turnwise.service.tinker.store import RequestStore, Result, StoredModel, StoredRequest
from turnwise.service.tinker.trained_model import ModelSpec, TrainedModel

SAVE_AFTER_S = 30.0
"""Seconds of work after which a model's state is saved, so that a restart repeats no more."""
SAVE_AFTER_REQUESTS, SAVE_AFTER_BYTES = 500, 256 << 20
COPIES = 4
"""Weights, gradients and two averages of a model that trains all weights."""
CHANGES = ("forward_backward", "optim_step", "load_weights")
"""Kinds of requests that change a model, and that a restart repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseModel:
    """The model that all tenants train."""

    name: str
    loaded: LoadedModel
    load_copy: Callable[[], Any]
    """Loads it again, for a tenant that trains all weights."""
    make_engine: Callable[[Any], Engine]
    max_tokens: int
    """Longest context."""
    max_models: int
    """Models in memory; the one that was used least recently is dropped, and loaded again when it is used."""
    config_toml: Callable[[ModelSpec], str]
    """Settings for the run folder of a model."""

    @property
    def vocabulary(self) -> int:
        return int(self.loaded.model.get_input_embeddings().weight.shape[0])

    @property
    def limits(self) -> InputLimits:
        return InputLimits(vocabulary=self.vocabulary, max_tokens=self.max_tokens)


@dataclass(slots=True)
class LoadedTenant:
    model: TrainedModel
    run: ModelRun
    steps: int
    seq: int
    """Last request that is in the model."""
    unsaved_s: float = 0.0
    unsaved: int = 0
    unsaved_bytes: int = 0

    def add(self, request: StoredRequest) -> None:
        """Count a request that is in the model, and not in its saved state."""
        self.seq, self.unsaved = request.seq, self.unsaved + 1
        self.unsaved_bytes += len(request.body)

    @property
    def can_save(self) -> bool:
        """Whether there is something to save that a state has: gradients and weights that diverged are repeated."""
        return self.unsaved > 0 and not self.model.has_gradients and not self.model.diverged

    @property
    def is_due(self) -> bool:
        """Whether the state should be saved."""
        many = self.unsaved >= SAVE_AFTER_REQUESTS or self.unsaved_bytes >= SAVE_AFTER_BYTES
        return many or self.unsaved_s >= SAVE_AFTER_S


class Backend:
    def __init__(self, base: BaseModel, store: RequestStore, folder: Path) -> None:
        self._base, self._store = base, store
        self.weights = SavedWeights(folder)
        self._shared = SharedModel(base.loaded)
        self._samplers = Samplers(self._shared, base.load_copy, base.make_engine, self.weights)
        self._tenants: dict[str, LoadedTenant] = {}
        """By model, the least recently used first."""
        self._runner = asyncio.Runner()
        self._handlers: dict[str, Callable[[LoadedTenant, StoredRequest], Result]] = {
            "forward_backward": self._forward_backward,
            "optim_step": self._step,
            "save_weights": self._save_weights,
            "save_weights_for_sampler": self._save_for_sampler,
            "save_weights_external": self._save_external,
            "load_weights": self._load_weights,
        }

    def close(self) -> None:
        for model in list(self._tenants):
            self.drop(model)
        self._runner.close()

    def run(self, request: StoredRequest) -> Result:
        """Run a request for a model. Raises RequestFailure."""
        if request.kind == "create_model":
            self._tenant(request.parent)
            return _json({"type": "create_model", "model_id": request.parent})
        tenant, began = self._tenant(request.parent), time.perf_counter()
        result = self._handlers[request.kind](tenant, request)
        if request.kind in CHANGES:
            tenant.add(request)
            tenant.unsaved_s += time.perf_counter() - began
        return result

    def after(self, request: StoredRequest) -> None:
        """Save the state of a model if it is due. Call it once the result of the request is stored."""
        tenant = self._tenants.get(request.parent)
        if tenant is None or not tenant.can_save:
            return
        if tenant.is_due or request.kind == "load_weights":
            self._save_state(request.parent, tenant)

    def drop(self, model: str) -> None:
        """Drop a model from memory. What is not in its saved state is repeated when it is used again."""
        tenant = self._tenants.pop(model)
        if tenant.can_save:
            self._save_state(model, tenant)
        tenant.model.close()
        tenant.run.close()

    def forget(self, model: str) -> None:
        """Drop a model whose state in memory may be wrong, without saving it."""
        if (tenant := self._tenants.pop(model, None)) is not None:
            tenant.model.close()
            tenant.run.close()

    def _tenant(self, name: str) -> LoadedTenant:
        """Return a model, loaded from its saved state and the requests since."""
        if (tenant := self._tenants.pop(name, None)) is None:
            while len(self._tenants) >= self._base.max_models:
                self.drop(next(iter(self._tenants)))
            stored = self._store.model(name)
            assert stored is not None
            tenant = self._load(stored)
        self._tenants[name] = tenant  # at the end: the most recently used
        return tenant

    def _load(self, stored: StoredModel) -> LoadedTenant:
        spec = read_spec(stored.spec)
        own = None if spec.shape is not None else self._load_copy()
        model = TrainedModel(spec, self._shared, own)
        folder = self.weights.model_folder(stored.id)
        run = ModelRun(folder, self._base.config_toml(spec))
        tenant = LoadedTenant(model=model, run=run, steps=stored.saved_steps, seq=stored.saved_seq)
        if stored.saved_seq >= 0:
            model.load(_read_state(folder, stored.saved_seq), optimizer=True)
        for request in self._store.to_replay(stored.id, stored.saved_seq):
            if request.kind in CHANGES:
                with suppress(RequestFailure):  # as it did before
                    self._handlers[request.kind](tenant, request)
                tenant.add(request)
        return tenant

    def _load_copy(self) -> Any:
        """Return the base model again, for a tenant that trains all weights. Raises RequestFailure."""
        size = sum(parameter.nbytes for parameter in self._base.loaded.model.parameters())
        needed, free = COPIES * size, available_memory()
        while free is not None and needed > free and self._tenants:
            self.drop(next(iter(self._tenants)))
            free = available_memory()
        if free is not None and needed > free:
            raise RequestFailure(
                f"Training all weights needs {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are available: "
                "train an adapter, with lora_config."
            )
        return self._base.load_copy()

    def _save_state(self, name: str, tenant: LoadedTenant) -> None:
        folder = self.weights.model_folder(name)
        states = _state_folder(folder, tenant.seq)
        if states.exists():  # written before a kill
            remove_folder(states)
        with atomic_folder(states) as aside:
            _write_state(aside, tenant.model)
        self._store.set_saved(name, tenant.seq, tenant.steps)
        for old in states.parent.glob("state-*"):
            if old != states:
                remove_folder(old)
        tenant.unsaved, tenant.unsaved_bytes, tenant.unsaved_s = 0, 0, 0.0

    def _forward_backward(self, tenant: LoadedTenant, request: StoredRequest) -> Result:
        message = parse_forward_backward(request.body)
        output = tenant.model.forward_backward(read_forward_backward(message, self._base.limits))
        return Result(kind="proto", body=output)

    def _step(self, tenant: LoadedTenant, request: StoredRequest) -> Result:
        body = OptimStep.model_validate_json(request.body)
        if body.adam_params is None:
            kind = (body.optimizer_params or {}).get("type")
            raise not_offered(f"The optimizer {str(kind)[:40]}", "send AdamParams")
        began = time.perf_counter()
        metrics = tenant.model.step(body.adam_params)
        tenant.steps += 1
        tenant.run.record(tenant.steps, metrics, time.perf_counter() - began)
        return _json({"metrics": {name: metrics[name] for name in ("grad_norm", "learning_rate", "skipped")}})

    def _save_weights(self, tenant: LoadedTenant, request: StoredRequest) -> Result:
        body = SaveWeights.model_validate_json(request.body)
        name = f"step-{tenant.steps:06d}-{request.seq}" if body.path is None else body.path
        check_name(name)
        path = WeightsPath(model=request.parent, kind="weights", name=name)
        info = self._info(tenant, request, body.user_metadata, optimizer=True)
        self.weights.save(path, tenant.model.state(), info, overwrite=body.overwrite)
        return _json({"type": "save_weights", "path": str(path)})

    def _info(
        self, tenant: LoadedTenant, request: StoredRequest, metadata: dict[str, str] | None, *, optimizer: bool
    ) -> WeightsInfo:
        return WeightsInfo(
            spec=tenant.model.spec, request=request.id, time=now(), optimizer=optimizer, metadata=metadata
        )

    def _save_for_sampler(self, tenant: LoadedTenant, request: StoredRequest) -> Result:
        body = SaveForSampler.model_validate_json(request.body)
        if body.kind != "snapshot":
            raise not_offered(f"A sampler of the kind {body.kind[:40]}", "save a snapshot for each sampler")
        if body.path is None and body.sampling_session_seq_id is None:
            raise RequestFailure("save_weights_for_sampler needs a path or a sampling_session_seq_id.")
        if body.path is not None:
            check_name(body.path)
        name = f"{SESSION_PREFIX}{body.sampling_session_seq_id}" if body.path is None else body.path
        path = WeightsPath(model=request.parent, kind="sampler_weights", name=name)
        self.weights.save(
            path, tenant.model.weights(), self._info(tenant, request, body.user_metadata, optimizer=False)
        )
        reply: dict[str, Any] = {"type": "save_weights_for_sampler", "path": str(path)}
        if body.path is None:
            sampler = sampler_id(session_of(request.parent), body.sampling_session_seq_id or 0)
            self._store.add_sampler(sampler, request.owner, str(path))
            reply |= {"path": None, "sampling_session_id": sampler}
        return _json(reply)

    def _save_external(self, tenant: LoadedTenant, request: StoredRequest) -> Result:
        body = SaveExternal.model_validate_json(request.body)
        if body.age_encryption_recipients:
            raise not_offered("age_encryption_recipients", "encrypt the files that you download")
        check_name(body.path)
        path = WeightsPath(model=request.parent, kind="external_weights", name=body.path)
        loaded = self._base.loaded
        info = self._info(tenant, request, None, optimizer=False)
        self.weights.write(
            path, lambda folder: write_external(tenant.model, loaded.name, loaded.tokenizer, folder), info
        )
        size = self.weights.size(path)
        return _json({"type": "save_weights_external", "path": str(path), "size_bytes": size})

    def _load_weights(self, tenant: LoadedTenant, request: StoredRequest) -> Result:
        body = LoadWeights.model_validate_json(request.body)
        path = WeightsPath.parse(body.path)
        if self._store.model(path.model, request.owner) is None:
            raise RequestFailure(f"There are no weights {path}: list them with RestClient.list_checkpoints.")
        info = self.weights.info(path)
        if body.optimizer and not info.optimizer:
            raise RequestFailure(f"{path} has no optimizer state: load it without, or weights of save_state.")
        tenant.model.load(self.weights.load(path), optimizer=body.optimizer)
        return _json({"type": "load_weights", "path": str(path), "model_id": request.parent})

    def sample(self, path: str | None, requests: Sequence[StoredRequest]) -> list[Result | RequestFailure]:
        """Run the requests for one sampler together. Each gets a result or its failure."""
        results: dict[str, Result | RequestFailure] = {}
        jobs = list[SampleJob]()
        for request in requests:
            try:
                jobs.append(self._read_sample(request))
            except RequestFailure as failure:
                results[request.id] = failure
        if jobs:
            bodies = self._runner.run(self._samplers.sample(path, jobs, self._base.max_tokens))
            for job, body in zip(jobs, bodies, strict=True):
                results[job.id] = body if isinstance(body, RequestFailure) else Result(kind="proto", body=body)
        return [results[request.id] for request in requests]

    def _read_sample(self, stored: StoredRequest) -> SampleJob:
        request = SampleRequest.model_validate_json(stored.body)
        prompt = request.prompt_ids(self._base.vocabulary, self._base.max_tokens)
        request.check(len(prompt))
        return SampleJob(request=request, prompt=tuple(prompt), id=stored.id)


def write_spec(spec: ModelSpec) -> str:
    return json.dumps(asdict(spec))


def read_spec(text: str) -> ModelSpec:
    fields = json.loads(text)
    shape = fields["shape"]
    return ModelSpec(shape=None if shape is None else LoraShape(**shape), seed=fields["seed"])


def session_of(model: str) -> str:
    return model.partition(":")[0]


def model_id(session: str, number: int) -> str:
    return f"{session}:train:{number}"


def sampler_id(session: str, number: int) -> str:
    return f"{session}:sample:{number}"


def _json(body: dict[str, Any]) -> Result:
    return Result(kind="json", body=json.dumps(body).encode())


def _state_folder(folder: Path, seq: int) -> Path:
    return folder / "states" / f"state-{seq:09d}"


def _write_state(folder: Path, model: TrainedModel) -> None:
    save_file({name: tensor.contiguous() for name, tensor in model.state().items()}, folder / STATE_FILE)


def _read_state(folder: Path, seq: int) -> dict[str, Any]:
    return load_file(_state_folder(folder, seq) / STATE_FILE)
