"""Requests to vLLM, and the protocol of what answers them: vLLM in this process or a server."""

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from turnwise.core.protocols import Sampling
from turnwise.engine.vllm.images import PromptImage
from turnwise.engine.vllm.weights import PublishedWeights
from turnwise.models.allowed_tokens import NEVER


class ReplicaFailure(Exception):
    """A replica died or cannot be reached. Another replica, or its restarted process, can answer the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    """One turn to sample. Equal requests to equal weights give equal tokens, up to rounding."""

    id: str
    prompt: tuple[int, ...]
    sampling: Sampling
    stop_ids: tuple[int, ...]
    seed: int
    version: int
    """Version of the weights when the request was made: requests of other versions do not share its prefix cache."""
    images: tuple[PromptImage, ...] = ()
    """Images of the prompt, in order."""
    never_sampled: tuple[int, ...] = ()

    @property
    def streams(self) -> bool:
        """Whether tokens are needed one by one: stop strings are recognised here, since vLLM has no tokenizer."""
        return bool(self.sampling.stop)

    @property
    def salt(self) -> str:
        return f"version {self.version}"

    def params(self) -> dict[str, Any]:
        """Return vLLM's sampling parameters.

        None is left to a default: a server takes defaults from the model's generation_config.json, such as a repetition
        penalty. The model's own stop ids are ignored for the same reason.
        """
        sampling = self.sampling
        return {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": 0.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "max_tokens": sampling.max_tokens,
            "min_tokens": 0,
            "seed": self.seed,
            "stop_token_ids": list(self.stop_ids),
            "ignore_eos": True,
            "logit_bias": dict.fromkeys(self.never_sampled, NEVER) or None,
            "logprobs": 0,
            "detokenize": False,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenChunk:
    """Tokens of a request since its last chunk."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finished: bool
    version_spans: tuple[tuple[int, int, int], ...] = ()
    """(version, start, end) over all tokens of the request, in the last chunk; empty: vLLM does not report them."""


def version_spans(spans: Iterable[tuple[str, int, int]]) -> tuple[tuple[int, int, int], ...]:
    """Read vLLM's version spans. A version that was never published belongs to an engine that was restarted."""
    read = tuple(spans)
    if any(not version.isdecimal() for version, _, _ in read):
        raise ReplicaFailure("it was restarted and lost the published weights")
    return tuple((int(version), start, end) for version, start, end in read)


class Replica(Protocol):
    """One vLLM engine. Every method raises ReplicaFailure if the engine is dead or cannot be reached."""

    @property
    def name(self) -> str:
        """Name in messages."""
        ...

    async def start(self) -> None:
        """Start it, or connect to it. A restarted replica has no weights yet."""
        ...

    def generate(self, request: TokenRequest) -> AsyncIterator[TokenChunk]: ...

    async def abort(self, request: TokenRequest) -> None:
        """End a request. Its last chunk follows."""
        ...

    async def load(self, weights: PublishedWeights) -> None:
        """Replace the weights. Running requests are paused and continue with the new weights."""
        ...

    async def sleep(self) -> None:
        """Release GPU memory until the next request."""
        ...

    async def close(self) -> None: ...
