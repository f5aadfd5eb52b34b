"""Sample from saved weights, and score prompts. All requests of one set of weights run in the engine together."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from turnwise.core.protocols import Completion, Engine, Sampling
from turnwise.core.random_streams import address
from turnwise.core.samples import Batch
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Stop
from turnwise.models.forward import batch_attention, packed_logits
from turnwise.service.tinker.errors import RequestFailure, not_offered
from turnwise.service.tinker.messages import FLOAT32, LENGTH, MESSAGES, STOP

MAX_SAMPLES = 1024
MAX_TOPK = 128
MAX_STOPS = 64
MAX_STOP_LENGTH = 256
CHUNK_LOGITS = 1 << 26
"""Logits of prompt positions that are computed at once (256 MiB of float32)."""
EMPTY_TOKEN, EMPTY_LOGPROB = 0, -99999.0
TASK = Task(env="tinker", seed=0)


Index = Annotated[int, Field(ge=0, lt=2**31)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, protected_namespaces=())


class Chunk(BaseModel):
    """A part of a prompt; parts other than text are read, and refused by name."""

    model_config = ConfigDict(extra="allow")

    type: str = "encoded_text"
    tokens: list[int] = Field(default_factory=list)


class Prompt(Strict):
    chunks: list[Chunk]


class SamplingParams(Strict):
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    seed: int | None = None
    stop: str | list[int] | list[Annotated[str, Field(max_length=MAX_STOP_LENGTH)]] | None = None
    """None: the model's own stop tokens. []: none, not even those."""
    temperature: float = Field(1.0, ge=0)
    top_k: int = Field(-1, ge=-1)
    top_p: float = Field(1.0, gt=0, le=1)


class TokenMatrix(Strict):
    """Token ids by prompt position; -1 asks for nothing."""

    data: list[Annotated[int, Field(ge=-1, lt=2**31)]]
    dtype: str
    shape: list[int]
    sparse_crow_indices: list[Index] | None = None
    sparse_col_indices: list[Index] | None = None


class SampleRequest(Strict):
    """Body of /asample."""

    type: str = "sample"
    num_samples: int = Field(1, ge=1, le=MAX_SAMPLES)
    prompt: Prompt
    sampling_params: SamplingParams
    base_model: str | None = None
    model_path: str | None = None
    sampling_session_id: str | None = None
    seq_id: int | None = None
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: int = Field(0, ge=0, le=MAX_TOPK)
    topk_sample_logprobs: int = Field(0, ge=0, le=MAX_TOPK)
    target_prompt_logprobs: TokenMatrix | None = None
    prompt_alt_tokens_k: int = Field(0, ge=0)
    prompt_logprobs_last_n: int | None = None
    record_stability_info: bool | None = None

    def prompt_ids(self, vocabulary: int, max_tokens: int) -> list[int]:
        """Return the prompt. Raises RequestFailure."""
        for chunk in self.prompt.chunks:
            if chunk.type != "encoded_text":
                raise not_offered(f"A prompt chunk of the type {chunk.type[:40]}", "send tokens only")
        ids = [token for chunk in self.prompt.chunks for token in chunk.tokens]
        if not 0 < len(ids) < max_tokens:
            raise RequestFailure(f"The prompt has {len(ids)} tokens: send 1 to {max_tokens - 1}.")
        if wrong := [token for token in ids if not 0 <= token < vocabulary]:
            raise RequestFailure(f"The prompt has the token id {wrong[0]}: ids are 0 to {vocabulary - 1}.")
        return ids

    def check(self, prompt_length: int) -> None:
        """Raise RequestFailure for what is not offered."""
        if self.prompt_alt_tokens_k:
            raise not_offered("prompt_alt_tokens_k", "sample from each prefix of the prompt")
        if self.record_stability_info:
            raise not_offered("record_stability_info", "use a loss other than stable_reinforce")
        last = self.prompt_logprobs_last_n
        if last is not None and not (self.prompt_logprobs and 1 <= last < prompt_length):
            raise RequestFailure(
                f"prompt_logprobs_last_n is {last}: use 1 to {prompt_length - 1}, with prompt_logprobs."
            )
        stop = self.sampling_params.stop
        if isinstance(stop, list) and len(stop) > MAX_STOPS:
            raise RequestFailure(f"sampling_params.stop has {len(stop)} entries: send {MAX_STOPS} at most.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleJob:
    """A request with its prompt, which was checked, and the address of its random numbers if it has no seed."""

    request: SampleRequest
    prompt: tuple[int, ...]
    id: str

    def sampling(self, max_tokens: int) -> Sampling:
        params = self.request.sampling_params
        stop = [params.stop] if isinstance(params.stop, str) else params.stop or []
        left = max_tokens - len(self.prompt)
        return Sampling(
            max_tokens=left if params.max_tokens is None else min(params.max_tokens, left),
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=max(params.top_k, 0),
            stop=tuple(text for text in stop if isinstance(text, str) and text),
            stop_ids=tuple(token for token in stop if isinstance(token, int)),
        )

    def key(self, number: int) -> EpisodeKey:
        seed = self.request.sampling_params.seed
        run_seed = address("tinker", self.id) if seed is None else address("tinker seed", seed)
        return EpisodeKey(run_seed=run_seed, round=0, task=TASK, member=number)


async def sample(
    engine: Engine, model: Any, jobs: Sequence[SampleJob], max_tokens: int
) -> list[bytes | RequestFailure]:
    """Return the encoded SampleResponse of each job, or why it failed."""
    keys = [(job, job.key(number)) for job in jobs for number in range(job.request.num_samples)]
    completions = iter(await asyncio.gather(*(_generate(engine, job, key, max_tokens) for job, key in keys)))
    return [_encode(model, job, [next(completions) for _ in range(job.request.num_samples)]) for job in jobs]


def _encode(model: Any, job: SampleJob, completions: Sequence[Completion]) -> bytes | RequestFailure:
    try:
        return encode_response(model, job, completions)
    except RequestFailure as failure:
        return failure


async def _generate(engine: Engine, job: SampleJob, key: EpisodeKey, max_tokens: int) -> Completion:
    sampling = job.sampling(max_tokens)
    async with engine.open(key) as session:
        completion = await session.generate(job.prompt, sampling)
        if job.request.sampling_params.stop != []:
            return completion
        ids, logprobs = list(completion.ids), list(completion.logprobs)
        while completion.stop is Stop.EOS and (left := sampling.max_tokens - len(ids)) > 0:
            more = Sampling(max_tokens=left, temperature=sampling.temperature, top_p=sampling.top_p,
                            top_k=sampling.top_k)  # fmt: skip
            completion = await session.generate((), more)
            ids += completion.ids
            logprobs += completion.logprobs
        return Completion(ids=tuple(ids), logprobs=tuple(logprobs), stop=Stop.LENGTH, temperature=sampling.temperature)


@torch.inference_mode()
def encode_response(model: Any, job: SampleJob, completions: Sequence[Completion]) -> bytes:
    request, response = job.request, MESSAGES["SampleResponse"]()
    for completion in completions:
        sequence = response.sequences.add(stop_reason=LENGTH if completion.stop is Stop.LENGTH else STOP)
        sequence.tokens = np.array(completion.ids, "<i4").tobytes()
        sequence.logprobs = np.array(completion.logprobs, "<f4").tobytes()
        if request.topk_sample_logprobs:
            ids = (*job.prompt, *completion.ids)
            scores = score_tokens(model, ids, len(job.prompt), request.topk_sample_logprobs)
            _fill_topk(sequence.topk_sampled_logprobs, scores, 0)
    if request.prompt_logprobs or request.topk_prompt_logprobs:
        last = request.prompt_logprobs_last_n
        first = 1 if last is None else len(job.prompt) - last
        scores = score_tokens(model, job.prompt, first, request.topk_prompt_logprobs)
        if request.prompt_logprobs:
            missing = np.full(first, np.nan, "<f4")
            response.prompt_logprobs = np.concatenate([missing, scores.logprobs.numpy()]).tobytes()
        if request.topk_prompt_logprobs:
            _fill_topk(response.topk_prompt_logprobs, scores, first)
    if request.target_prompt_logprobs is not None:
        _fill_targets(response.target_prompt_logprobs, model, job.prompt, request.target_prompt_logprobs)
    return response.SerializeToString()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """Log-probabilities at temperature 1 of P tokens, each given those before it."""

    logprobs: Tensor  # [P]
    top_ids: Tensor  # [P, K]
    top_logprobs: Tensor  # [P, K]


@torch.inference_mode()
def score_tokens(model: Any, ids: Sequence[int], first: int, top: int = 0) -> TokenScores:
    """Score the tokens from position `first`, which is at least 1."""
    vocabulary = int(model.get_input_embeddings().weight.shape[0])
    targets = torch.tensor(ids[first:], dtype=torch.int64)
    parts = list[tuple[Tensor, Tensor, Tensor]]()
    for rows in torch.arange(first - 1, len(ids) - 1).split(max(1, CHUNK_LOGITS // vocabulary)):
        logprobs = _log_softmax(model, ids, rows)
        values, indices = logprobs.topk(top, dim=-1)
        chosen = targets[rows - (first - 1)]
        parts.append((logprobs.gather(1, chosen[:, None])[:, 0], indices, values))
    if not parts:
        return TokenScores(logprobs=torch.zeros(0), top_ids=torch.zeros(0, top), top_logprobs=torch.zeros(0, top))
    scores, indices, values = (torch.cat(column) for column in zip(*parts, strict=True))
    return TokenScores(logprobs=scores, top_ids=indices, top_logprobs=values)


def _log_softmax(model: Any, ids: Sequence[int], rows: Tensor) -> Tensor:
    """Return the log-probabilities [P, V] after the tokens at positions `rows`, on the CPU."""
    device = model.get_input_embeddings().weight.device
    batch = Batch(
        ids=torch.tensor(ids, device=device),
        positions=torch.arange(len(ids), device=device),
        lengths=(len(ids),),
        parents=(-1,),
        order=(0,),
        counts=(len(rows),),
        sources=rows.to(device),
        targets=torch.zeros(len(rows), dtype=torch.int64, device=device),
        temperatures=torch.ones(len(rows), device=device),
        ends=torch.tensor([len(ids) - 1], device=device),
    )
    with batch_attention(model, batch):
        logits, _ = packed_logits(model, batch, batch.sources)
    return logits.float().log_softmax(dim=-1).cpu()


def _fill_topk(message: Any, scores: TokenScores, empty: int) -> None:
    """Write the matrices of the top tokens, after `empty` positions without any."""
    width = scores.top_ids.shape[1]
    ids = np.concatenate([np.full((empty, width), EMPTY_TOKEN), scores.top_ids.numpy()])
    logprobs = np.concatenate([np.full((empty, width), EMPTY_LOGPROB), scores.top_logprobs.numpy()])
    message.token_ids, message.logprobs = ids.astype("<i4").tobytes(), logprobs.astype("<f4").tobytes()
    message.k, message.length = width, len(ids)


def _fill_targets(message: Any, model: Any, prompt: Sequence[int], matrix: TokenMatrix) -> None:
    """Write the log-probabilities of chosen tokens, in the layout of the request; 0 where none was asked for."""
    rows, wanted = _read_matrix(matrix, len(prompt) - 1)
    vocabulary = int(model.get_input_embeddings().weight.shape[0])
    asked = wanted >= 0
    if len(wanted) and int(wanted.max()) >= vocabulary:
        raise RequestFailure(
            f"target_prompt_logprobs has the token id {int(wanted.max())}: ids end at {vocabulary - 1}."
        )
    values = torch.zeros(len(wanted))
    if asked.any():
        positions = rows[asked].unique()
        for part in positions.split(max(1, CHUNK_LOGITS // vocabulary)):
            logprobs = _log_softmax(model, prompt, part)
            here = asked & torch.isin(rows, part)
            values[here] = logprobs[torch.searchsorted(part, rows[here]), wanted[here]]
    message.dtype = FLOAT32
    message.shape.extend(matrix.shape)
    if matrix.sparse_crow_indices is None:
        message.dense = values.numpy().tobytes()
        return
    message.sparse_csr.values = values.numpy().tobytes()
    message.sparse_csr.crow_indices = np.array(matrix.sparse_crow_indices, "<i8").tobytes()
    message.sparse_csr.col_indices = np.array(matrix.sparse_col_indices, "<i8").tobytes()


def _read_matrix(matrix: TokenMatrix, positions: int) -> tuple[Tensor, Tensor]:
    """Return row and token id of each cell that the matrix has."""
    wrong = RequestFailure(f"target_prompt_logprobs must be an int64 tensor [{positions}, K] of token ids.")
    if matrix.dtype != "int64" or len(matrix.shape) != 2 or matrix.shape[0] != positions:
        raise wrong
    wanted, width = torch.tensor(matrix.data, dtype=torch.int64), matrix.shape[1]
    if not 0 < width <= MAX_TOPK:
        raise wrong
    if matrix.sparse_crow_indices is None:
        if len(wanted) != positions * width:
            raise wrong
        cells = torch.arange(len(wanted))
        return cells // width, wanted
    starts, columns = matrix.sparse_crow_indices, matrix.sparse_col_indices or []
    sizes = torch.tensor(starts).diff()
    fits = len(starts) == positions + 1 and starts[0] == 0 and starts[-1] == len(columns) == len(wanted)
    if not fits or bool((sizes < 0).any()) or any(not 0 <= column < width for column in columns):
        raise wrong
    return torch.arange(positions).repeat_interleave(sizes), wanted
