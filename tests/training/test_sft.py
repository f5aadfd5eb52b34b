import asyncio
import random
from typing import Any

import pytest
import torch

from episodes_for_tests import renderer
from turnwise.algos.entropy import logprobs_and_entropy
from turnwise.config.load import build
from turnwise.core.errors import EnvironmentFailure, UserError
from turnwise.core.learner import StepSettings
from turnwise.core.samples import Sample
from turnwise.data.demonstrations import build_demonstration
from turnwise.data.packing import pack
from turnwise.envs.answers import read_answer
from turnwise.envs.registry import load_spec, spec_of
from turnwise.envs.seeds import split_of_seed
from turnwise.envs.text_env import Outcome, TextEnv, goes_on, won
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.forward import packed_logits
from turnwise.models.loading.load import load_model
from turnwise.run.sft import build_sft_learner
from turnwise.training import sft
from turnwise.training.sft import SftSettings, batch_indices, count_steps, solve_demonstrations, train_on_demonstrations


def settings(**changes: Any) -> SftSettings:
    return SftSettings(**{"batch": 3, "epochs": 2, "seed": 0, "micro_tokens": 10_000, **changes})


def played(kind_name: str = "frozen_lake", count: int = 4, think: bool = False) -> list[Any]:
    kind = load_spec(kind_name)
    show = lambda done, total: None  # noqa: E731
    return asyncio.run(
        solve_demonstrations([(kind, kind.check_params({}))], count=count, seed=0, think=think, attempts=3, show=show)
    )


def samples(count: int = 4) -> list[Sample]:
    return [build_demonstration(number, each, renderer()) for number, each in enumerate(played(count=count))]


def loss_and_gradients(demonstrations: list[Sample], micro_tokens: int) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of the first step of a new model."""
    model = load_model("tiny", attn_implementation=ATTENTION).model
    learner = build_sft_learner(build({}, []), model, steps=10)
    found: dict[str, torch.Tensor] = {}

    def step() -> dict[str, float]:
        found.update({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
        return {"grad_norm": 0.0}

    learner.step = step  # type: ignore[method-assign]
    return train_on_demonstrations(learner, demonstrations, micro_tokens)[0], found


def test_sft_sees_every_demonstration_once_per_epoch() -> None:
    seen = [batch_indices(7, step, settings()) for step in range(count_steps(7, settings()))]
    assert list(map(len, seen)) == [3, 3, 1, 3, 3, 1]
    first, second = [*seen[0], *seen[1], *seen[2]], [*seen[3], *seen[4], *seen[5]]
    assert sorted(first) == sorted(second) == list(range(7)) and first != second
    assert seen != [batch_indices(7, step, settings(seed=1)) for step in range(6)]


def test_sft_loss_is_the_mean_over_answer_tokens() -> None:
    demonstrations = samples()
    model = load_model("tiny", attn_implementation=ATTENTION).model
    batch = pack(demonstrations)
    logits, _ = packed_logits(model, batch, batch.sources)
    logprobs, _ = logprobs_and_entropy(logits, batch.targets, batch.temperatures)
    expected = -logprobs.mean()
    expected.backward()
    wanted = {name: each.grad.clone() for name, each in model.named_parameters()}
    for micro_tokens in (1, 10_000):
        loss, gradients = loss_and_gradients(demonstrations, micro_tokens)
        assert loss == pytest.approx(float(expected), rel=1e-5)
        for name, gradient in wanted.items():
            torch.testing.assert_close(gradients[name], gradient, atol=1e-5, rtol=1e-3)


def test_sft_makes_the_answers_likely() -> None:
    demonstrations = samples(8)
    learner = build_sft_learner(
        build({}, [("sft.learning_rate", 3e-3)]), load_model("tiny", attn_implementation=ATTENTION).model, steps=12
    )
    losses = []
    for step in range(12):
        learner.begin_step(StepSettings(step=step))
        losses.append(train_on_demonstrations(learner, demonstrations, 10_000)[0])
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("kind", ["frozen_lake", "sokoban", "bandit"])
def test_solver_plays_training_tasks_until_success(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if load_spec(kind).cls.solve is TextEnv.solve:
        with pytest.raises(UserError, match="no solver"):
            played(kind)
        return
    seeds = []
    real = sft.Task
    monkeypatch.setattr(sft, "Task", lambda **given: seeds.append(given["seed"]) or real(**given))
    talks = played(kind, count=6)
    assert len(talks) == 6 and {split_of_seed(seed) for seed in seeds} == {"train"}
    assert len({talk[0].messages[-1].content for talk in talks}) > 3


def test_solver_script_puts_a_true_sentence_before_the_actions() -> None:
    ((first, *_),) = played("frozen_lake", count=1, think=True)
    thought, answer = first.answer.split("</think>")
    actions = read_answer(answer, several=True).actions
    assert f"Next: {', '.join(actions)}." in thought
    rows = first.messages[-1].content.splitlines()
    for symbol, name in (("P", "Me"), ("G", "goal")):
        ((row, column),) = [(r, line.split().index(symbol)) for r, line in enumerate(rows) if symbol in line]
        assert f"{name} row {row + 1} col {column + 1}" in thought


def test_solver_script_of_sokoban_names_positions() -> None:
    ((first, *_),) = played("sokoban", count=1, think=True)
    rows = first.messages[-1].content.splitlines()
    for symbol, name in (("X", "box"), ("O", "target")):
        ((row, column),) = [(r, line.split().index(symbol)) for r, line in enumerate(rows) if symbol in line]
        assert f"{name} row {row + 1} col {column + 1}" in first.answer


class Unsolved(TextEnv):
    """Nobody knows how."""

    def reset(self, rng: random.Random) -> str:
        return "?"

    def step(self, action: str) -> Outcome:
        return goes_on()


OPTIONS = {"attempts": 3, "show": lambda done, total: None}


def test_environment_without_a_solver_reports_the_fix() -> None:
    kind = spec_of(Unsolved)
    with pytest.raises(UserError, match=r"sft\.demos"):
        asyncio.run(solve_demonstrations([(kind, {})], count=1, seed=0, think=False, **OPTIONS))


class Hopeless(Unsolved):
    """There is a way, and it leads nowhere."""

    max_turns = 1

    def solve(self) -> list[str]:
        return ["go"]


def test_solver_that_never_succeeds_is_reported() -> None:
    with pytest.raises(UserError, match="never succeeded"):
        asyncio.run(solve_demonstrations([(spec_of(Hopeless), {})], count=2, seed=0, think=False, **OPTIONS))


class FailingNow(Hopeless):
    """Fails for the first `failures` episodes, then succeeds."""

    failures = 0
    tries = 0

    def step(self, action: str) -> Outcome:
        type(self).tries += 1
        if self.tries <= self.failures:
            raise ConnectionError("the server is gone")
        return won()


@pytest.mark.parametrize("attempts", [1, 4])
def test_solve_demonstrations_replaces_dropped_episodes(attempts: int) -> None:
    def solve(failures: int) -> int:
        FailingNow.failures, FailingNow.tries = failures, 0
        options = OPTIONS | {"attempts": attempts}
        return len(
            asyncio.run(solve_demonstrations([(spec_of(FailingNow), {})], count=8, seed=0, think=False, **options))
        )

    assert solve(2 * attempts) == 8 and FailingNow.tries == 8 + 2 * attempts, "two of eight may be dropped"
    with pytest.raises(EnvironmentFailure, match="the server is gone"):
        solve(3 * attempts)
    assert FailingNow.tries == 3 * attempts


def test_solve_demonstrations_alternates_environments() -> None:
    worlds = [(load_spec(name), load_spec(name).check_params({})) for name in ("frozen_lake", "sokoban")]
    talks = asyncio.run(solve_demonstrations(worlds, count=4, seed=0, think=False, **OPTIONS))
    prompts = [talk[0].messages[0].content for talk in talks]
    assert prompts[0] == prompts[2] != prompts[1] == prompts[3]
