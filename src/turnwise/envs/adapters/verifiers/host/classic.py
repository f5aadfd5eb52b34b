"""Environments of the first generation, up to verifiers 0.3: `load_environment()` returns an Environment with a rubric.

Its own rollout runs, with a client that hands every request to the episode.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from openai.types.chat import ChatCompletion
from verifiers.clients import OpenAIChatCompletionsClient
from verifiers.envs.environment import Environment

from turnwise.envs.adapters.verifiers.host.episode import Episode, EpisodeFailure, Score, completion, describe
from turnwise.envs.adapters.verifiers.host.locate import LoadFailure

LIMITS = ("max_turns_reached", "timeout_reached", "prompt_too_long", "max_total_completion_tokens_reached")
"""Stop conditions that are limits."""
_errors: ContextVar[list[str]] = ContextVar("errors")
"""Errors of this episode's reward functions, for which verifiers itself records a reward of 0."""


class EpisodeClient(OpenAIChatCompletionsClient):
    """A client of one episode. Messages are converted as for an endpoint of chat completions."""

    def __init__(self, episode: Episode) -> None:
        super().__init__(episode)

    async def get_native_response(
        self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **kwargs: Any
    ) -> ChatCompletion:
        return ChatCompletion.model_validate(completion(await self.client.ask(prompt, tools)))

    async def get_response(self, *args: Any, **kwargs: Any) -> Any:
        """Return the reply, with a text in any case: many reward functions look into it."""
        response = await super().get_response(*args, **kwargs)
        response.message.content = response.message.content or ""
        return response

    async def close(self) -> None:
        """Nothing to close."""


class ClassicEnvironment:
    """An Environment of verifiers, and its tasks by split."""

    def __init__(self, env: Any, max_turns: int) -> None:
        if not isinstance(env, Environment):
            raise LoadFailure(f"load_environment() returned {type(env).__name__}: an Environment is needed")
        if env.rubric.has_group_rewards:
            raise LoadFailure("its rubric compares the rollouts of a group, which is not supported: score each alone")
        own = getattr(env, "max_turns", 1)
        env.max_turns = min(own, max_turns) if own > 0 else max_turns
        self._env = env
        self._weights = dict[str, float]()
        self._watch(env.rubric)
        train, held_out = self._datasets()
        self.splits: dict[str, Any] = {"train": train} | ({"eval": held_out} if held_out is not None else {})
        self.kinds: Mapping[str, str] = {"train": "train", "eval": "test"}

    def _datasets(self) -> tuple[Any, Any]:
        """Return the training tasks and the held-out ones. Evaluation tasks alone are trained on."""
        env = self._env
        has_train = env.dataset is not None or env.dataset_source is not None
        has_eval = env.eval_dataset is not None or env.eval_dataset_source is not None
        held_out = env.get_eval_dataset() if has_eval else None
        return (env.get_dataset(), held_out) if has_train else (held_out, None)

    def _watch(self, rubric: Any) -> None:
        """Note the errors of reward functions, and the weights by name."""
        for inner in getattr(rubric, "rubrics", ()):
            self._watch(inner)
        for function, weight in zip(rubric.funcs, rubric.weights, strict=False):
            if weight:
                self._weights[function.__name__] = weight
        rubric.funcs[:] = [_watched(function) for function in rubric.funcs]

    async def run(self, split: str, index: int, episode: Episode) -> Score:
        row = dict(self.splits[split][index])
        _errors.set(errors := list[str]())
        state = await self._env.rollout(row, EpisodeClient(episode), "policy", {})
        _check(state)
        await self._env.rubric.score_rollout(state)
        await self._env.rubric.cleanup(state)
        if errors:
            raise EpisodeFailure(errors[0])
        metrics: Mapping[str, Any] = state["metrics"] or {}
        return Score(
            reward=state["reward"],
            parts={name: value for name, value in metrics.items() if name in self._weights},
            truncated=bool(state.get("timed_out")) or state.get("stop_condition") in LIMITS,
        )


def _check(state: Any) -> None:
    """Raise EpisodeFailure if the rollout ended with an error."""
    error = state.get("error")
    if error is not None:
        raise EpisodeFailure(describe(error) if isinstance(error, BaseException) else str(error))


def _watched(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the reward function with its errors noted."""

    def note(error: Exception) -> None:
        _errors.get().append(f"the reward function {function.__name__} raised {describe(error)}")

    async def finish(result: Any) -> Any:
        try:
            return await result
        except Exception as error:
            note(error)
            raise

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            note(error)
            raise
        return finish(result) if inspect.isawaitable(result) else result

    return call
