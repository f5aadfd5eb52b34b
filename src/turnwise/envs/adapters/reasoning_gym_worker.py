"""Tasks of reasoning-gym, inside their worker process."""

import math
from typing import Any

from reasoning_gym.factory import DATASETS, create_dataset

from turnwise.envs.adapters.reasoning_gym_answers import EXTRA_CHECKS, is_safe
from turnwise.envs.adapters.worker import IllegalAction, InvalidSetting, WorkerEnv, WorkerStep
from turnwise.text.suggestions import closest_match

SMALL_SEEDS = ("pool_matrix",)
"""Datasets that seed numpy's legacy stream, whose seeds have 32 bits."""
UNSUPPORTED = {
    "codeio": "it runs code that a model wrote",
    "composite": "it mixes other tasks; train on a mixture of environments instead",
}


class ReasoningGymWorkerEnv(WorkerEnv):
    def __init__(self, task: str, options: dict[str, Any], success_at: float, max_turns: int) -> None:
        if task in UNSUPPORTED:
            raise InvalidSetting(f"{task} is not supported ({UNSUPPORTED[task]}): choose another.", param="task")
        if task not in DATASETS:
            near = closest_match(task, DATASETS)
            fix = f'did you mean "{near}"?' if near else "see reasoning_gym.factory.DATASETS"
            raise InvalidSetting(f'reasoning-gym has no task "{task}": {fix}', param="task")
        self.task, self.options, self.success_at, self.max_turns = task, options, success_at, max_turns
        self._dataset(0)

    def reset(self, seed: int) -> WorkerStep:
        self.dataset = self._dataset(seed % 2**32 if self.task in SMALL_SEEDS else seed)
        self.entry = self.dataset[0]
        self.best = 0.0
        return {"text": self.entry["question"]}

    def step(self, action: str) -> WorkerStep:
        score = self._score(action)
        gained = max(0.0, score - self.best)
        self.best += gained
        if score >= self.success_at:
            return {"text": "Right.", "reward": gained, "over": True, "success": True}
        return {"text": "Not right.", "reward": gained, "over": self.max_turns == 1}

    def solve(self) -> list[str] | None:
        """Return the dataset's own answer if there is one and its scorer accepts it."""
        answer = self.entry["answer"]
        return [answer] if isinstance(answer, str) and self._score(answer) >= self.success_at else None

    def _score(self, answer: str) -> float:
        """Return a score from 0 to 1. Unsafe answers and answers that make the scorer raise are illegal."""
        if not is_safe(self.task, answer, self.entry["answer"]):
            raise IllegalAction("not of the form that is asked for")
        try:
            score = float(self.dataset.score_answer(answer=answer, entry=self.entry))
        except MemoryError:
            raise
        except Exception as error:
            raise IllegalAction(f"{type(error).__name__}: {error}") from error
        if not math.isfinite(score):
            raise ArithmeticError(f"the scorer of {self.task} returned {score}")
        passes = EXTRA_CHECKS.get(self.task, lambda answer, entry: True)
        return min(max(score, 0.0), 1.0) if passes(answer, self.entry) else 0.0

    def _dataset(self, seed: int) -> Any:
        try:
            return create_dataset(self.task, size=1, seed=seed, **self.options)
        except (TypeError, AssertionError, ValueError) as error:
            raise InvalidSetting(f"{self.task} rejects these options: {error}", param="options") from error
