"""ArCHer's step: fresh utterances at states of the replay, and the advantages that their tokens get."""

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from episodes_for_tests import task_of, trajectory_of, turn_of
from learners_for_tests import make_learner, rollout_of, settings_of, weights
from models_for_tests import random_model
from turnwise.core.learner import Needs
from turnwise.core.protocols import Sampling
from turnwise.core.trajectory import Group, Status, Trajectory
from turnwise.engine.scripted import ScriptedEngine
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.critic import UtteranceCritic
from turnwise.record.steps import IdleReason
from turnwise.record.trajectories import open_replay
from turnwise.run.build_learner import update_settings
from turnwise.training.estimators.archer import (
    ActorSettings,
    Archer,
    FreshUtterance,
    ReplayState,
    UtteranceSampler,
    build_estimate,
    decisions_of,
    draw_batches,
    draw_trajectories,
    effective_share,
    usable_trajectories,
    utterance_sample,
)
from turnwise.training.estimators.utterance_critic import UtteranceCriticLearner
from turnwise.training.optimizer import Optimizer, OptimizerSettings
from turnwise.training.step import Estimate
from turnwise.training.update import update

SETTINGS = OptimizerSettings(learning_rate=1e-3, weight_decay=0.0, max_grad_norm=1.0)


def talk(index: int, *, status: Status = Status.FAILED) -> Trajectory:
    """Return three turns, the last in a new context."""
    return trajectory_of(
        [
            turn_of([3, 4, 5 + index], [20, 21], extends=False, reward=0.25, temperature=0.8),
            turn_of([6], [22 + index], reward=1.0, temperature=0.8),
            turn_of([7, 8], [23], extends=False, reward=-1.0, temperature=0.8),
        ],
        task=task_of("test", index),
        status=status,
    )


def groups(count: int = 4) -> list[Group]:
    return [Group(task=each.task, trajectories=(each,)) for each in map(talk, range(count))]


def actor_settings(*, needs: Needs | None = None, **settings: Any) -> ActorSettings:
    archer = {"algo__estimator": "archer", "algo__estimator__gamma_turn": 0.9, "critic__kind": "utterances"}
    config = settings_of(algo__kl_coef=0.0, **archer, **settings)
    return ActorSettings(
        archer=config.algo.estimator,
        critic=config.critic,
        algo=config.algo,
        needs=needs or Needs(),
        micro_tokens=1000,
        run_seed=config.seed,
    )


def make_archer(folder: Path, policy: Any, **settings: Any) -> Archer:
    critic = UtteranceCritic(random_model("llama", ATTENTION), seed=1)
    learner = UtteranceCriticLearner(
        critic,
        Optimizer(list(critic.parameters()), SETTINGS, lambda step: 1.0),
        target_rate=0.5,
        expectile=None,
        micro_tokens=1000,
    )
    sampler = UtteranceSampler(
        policy=policy, sampling=Sampling(max_tokens=6, temperature=0.8), summary_tokens=2, max_tokens=12, run_seed=0
    )
    given = {
        "critic__updates": 2,
        "critic__batch": 3,
        "algo__estimator__states": 5,
        "algo__estimator__whiten": False,
    }
    return Archer(
        settings=actor_settings(**(given | settings)), critic=learner, replay=open_replay(folder, 100), sampler=sampler
    )


class Echo:
    """A policy that answers with the last id of its context."""

    def __init__(self) -> None:
        self.engine = ScriptedEngine(self._answer, [1])

    def _answer(self, key: Any, turn: int, ids: Any) -> list[int]:
        return [int(ids[-1]), 1]

    def open(self, key: Any) -> Any:
        return self.engine.open(key)


def act(archer: Archer, step: int = 1) -> Any:
    return asyncio.run(archer.sample(rollout_of(groups(), step)))


def test_fresh_utterances_continue_stored_states(tmp_path: Path) -> None:
    archer = make_archer(tmp_path, Echo())
    fresh = act(archer)
    assert len(fresh) == 10, "five in states of the replay, five in those of the step"
    for each in fresh:
        state = each.state.ids
        assert each.sample.ids.tolist() == [*state, state[-1], 1]
        assert each.sample.mask.tolist() == [False] * len(state) + [True, True]
        assert each.sample.temperatures[-2:].tolist() == pytest.approx([0.8, 0.8]), "as it was sampled"
        trajectory, turn = each.state.trajectory, each.state.turn
        segment = next(part for part in trajectory.segments() if 0 <= turn - part.first_turn < len(part.turns))
        before = segment.turns[: turn - segment.first_turn]
        token_ids = [token for part in before for token in (*part.context_ids, *part.action_ids)]
        assert state == [*token_ids, *trajectory.turns[turn].context_ids], (
            "all tokens before the utterance and no others"
        )


def test_stored_sample_is_the_state_and_its_utterance() -> None:
    turns = [
        turn_of([10, 11], [20, 21], extends=False, logprobs=[-0.5, -1.5]),
        turn_of([12], [22], logprobs=[-2.5], temperature=0.5),
        turn_of([13, 14], [23], extends=False, logprobs=[-3.5]),
    ]
    states = [ReplayState(trajectory=trajectory_of(turns), turn=turn, update=0, decision=turn) for turn in range(3)]
    other = utterance_sample([10], [29], [-9.0], 1.0)
    first, second, third = (FreshUtterance(state=state, sample=other).stored_sample() for state in states)
    assert [each.ids.tolist() for each in (first, second, third)] == [
        [10, 11, 20, 21],
        [10, 11, 20, 21, 12, 22],
        [13, 14, 23],
    ]
    assert second.ids[second.mask].tolist() == [22]
    assert first.sampler_logprobs.tolist() == [0.0, 0.0, -0.5, -1.5]
    assert second.temperatures[second.mask].tolist() == [0.5]


def test_fresh_utterances_belong_to_decisions_of_their_critic_update(tmp_path: Path) -> None:
    archer = make_archer(tmp_path, Echo())
    fresh, step = act(archer)[:5], 1
    assert [each.state.update for each in fresh] == [0, 0, 1, 1, 1], "five states for two updates"
    for each in fresh:
        trajectories = draw_trajectories(archer.replay, archer.settings, step)[each.state.update]
        turns = [(trajectory, turn) for trajectory in trajectories for turn in range(len(trajectory.turns))]
        assert turns[each.state.decision] == (each.state.trajectory, each.state.turn)
    batches = draw_batches(archer.replay, archer.settings, step)
    assert [len(each.rewards) for each in batches] == [9, 9], "the decisions of three trajectories each"


def test_fresh_utterances_are_the_same_when_repeated_and_differ_by_step(tmp_path: Path) -> None:
    archer = make_archer(tmp_path, Echo())
    first = act(archer)
    asyncio.run(archer.begin(0))
    assert len(archer.replay) == 0
    again, later = act(archer), act(archer, step=2)
    token_ids = [[each.sample.ids.tolist() for each in part] for part in (first, again, later)]
    assert token_ids[0] == token_ids[1] != token_ids[2]


def second_step(archer: Archer) -> tuple[list[Trajectory], list[FreshUtterance], Estimate]:
    """Play a second step of two episodes; the critic has learnt from the first."""
    learner = make_learner(settings_of(algo__kl_coef=0.0))
    first = archer.estimate(rollout_of(groups(), 1), act(archer), learner)
    assert first is not None and first.metrics["critic_trust"] == 0.0, "an untrained critic says nothing"
    new = [talk(index) for index in range(4, 6)]
    played = [Group(task=each.task, trajectories=(each,)) for each in new]
    fresh = asyncio.run(archer.sample(rollout_of(played, 2)))
    found = archer.estimate(rollout_of(played, 2), fresh, learner)
    assert found is not None
    return new, [each for each in fresh if each.state.update is None], found


def test_actor_acts_in_states_of_the_steps_episodes_alone(tmp_path: Path) -> None:
    new, fresh, found = second_step(make_archer(tmp_path, Echo()))
    turns = [(trajectory, turn) for trajectory in new for turn in range(3)]
    assert all(turns[each.state.decision] == (each.state.trajectory, each.state.turn) for each in fresh)
    assert len({each.state.decision for each in fresh}) == 5
    states = [each.sample.ids.tolist() for each in fresh]
    played = [each.stored_sample().ids.tolist() for each in fresh]
    assert [each.ids.tolist() for each in found.samples] == states + played
    assert found.trajectories == tuple(each.state.trajectory for each in fresh) * 2


def judge_by_hand(
    critic: UtteranceCriticLearner, new: list[Trajectory], fresh: list[FreshUtterance], settings: ActorSettings
) -> tuple[list[float], list[float], list[float], float, float]:
    """Return A of fresh and played utterances, return - V, the improvement and its error, decision by decision."""
    decisions = decisions_of(new, settings)
    judged, others = critic.estimate_values(decisions.samples), critic.estimate_values([each.sample for each in fresh])
    returns, gains = decisions.discounted_returns(), list[tuple[float, int]]()
    of_fresh, of_played, residuals = list[float](), list[float](), list[float]()
    for index, each in enumerate(fresh):
        at = each.state.decision
        value = float(judged.v[at].min())
        of_fresh.append(float(others.q[index].min() - others.v[index].min()))
        of_played.append(float(judged.q[at].min()) - value)
        residuals.append(float(returns[at]) - value)
        gains.append((float(judged.q[at].min() - others.q[index].min()) * residuals[-1], at // 3))
    mean = sum(gain for gain, _ in gains) / len(gains)
    squares = sum(sum(gain - mean for gain, own in gains if own == episode) ** 2 for episode in range(2))
    return of_fresh, of_played, residuals, mean, math.sqrt(squares) / len(gains)


@pytest.mark.parametrize("correction", ["returns", "none"])
def test_actor_trusts_the_critic_as_far_as_new_returns_confirm_it(
    tmp_path: Path, correction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The critic has not seen these returns when it is judged. A trust of 0.6 shows where it counts."""
    errors = list[tuple[float, float]]()

    def trust(improvement: float, error: float) -> float:
        errors.append((improvement, error))
        return 0.6 if improvement else 0.0

    archer = make_archer(tmp_path, Echo(), algo__estimator__correction=correction)
    critic, update_critic = archer.critic, archer.critic.update
    by_hand: Any = None

    def update_late(*args: Any) -> dict[str, float]:
        nonlocal by_hand
        if len(errors) == 2 and by_hand is None:
            by_hand = judge_by_hand(critic, *current)
        return update_critic(*args)

    monkeypatch.setattr("turnwise.training.estimators.archer.compute_trust", trust)
    monkeypatch.setattr(critic, "update", update_late)
    new = [talk(index) for index in range(4, 6)]
    current: Any = (new, [], archer.settings)
    sample = archer.sampler.sample

    async def keep(states: Any, step: int) -> Any:
        nonlocal current
        fresh = await sample(states, step)
        current = (new, [each for each in fresh if each.state.update is None], archer.settings)
        return fresh

    object.__setattr__(archer, "sampler", type("Sampler", (), {"sample": staticmethod(keep)})())
    _, _, found = second_step(archer)
    of_fresh, of_played, residuals, mean, error = by_hand
    assert errors[-1] == pytest.approx((mean, error), rel=1e-3)
    assert found.metrics["critic_improvement"] == pytest.approx(mean / critic.std**2, rel=1e-3)
    expected = of_fresh
    if correction == "returns":
        expected = [0.6 * each for each in of_fresh]
        expected += [left - 0.6 * each for left, each in zip(residuals, of_played, strict=True)]
    assert found.rate_scale == (1.0 if correction == "returns" else 0.6)
    tokens = [float(each[sample.mask][0]) for each, sample in zip(found.advantages, found.samples, strict=True)]
    assert tokens == pytest.approx([each / critic.std for each in expected], rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("truncated", ["bootstrap", "zero"])
def test_actor_bootstraps_the_returns_of_cut_episodes(tmp_path: Path, truncated: str) -> None:
    archer = make_archer(tmp_path, Echo(), algo__truncated=truncated, algo__estimator__states=6)
    archer.estimate(rollout_of(groups(), 1), act(archer), make_learner(settings_of(algo__kl_coef=0.0)))
    ended, cut = talk(4), talk(5, status=Status.TRUNCATED_TIME)
    played = [Group(task=each.task, trajectories=(each,)) for each in (ended, cut)]
    fresh = [each for each in asyncio.run(archer.sample(rollout_of(played, 2))) if each.state.update is None]
    estimates = archer.critic.estimate_values(decisions_of([ended, cut], archer.settings).samples)
    last = float(estimates.q[5].min()) if truncated == "bootstrap" else -1.0
    returns = [0.25 + 0.9 * (1.0 - 0.9), 1.0 - 0.9, -1.0, 0.25 + 0.9 * (1.0 + 0.9 * last), 1.0 + 0.9 * last, last]
    expected = torch.tensor(returns) - estimates.v.amin(dim=1)
    check = archer._check_critic(2, fresh)
    at = [each.state.decision for each in fresh]
    assert sorted(at) == list(range(6))
    torch.testing.assert_close(check.residuals, expected[at])
    known = 3 if truncated == "bootstrap" else 6
    assert check.metrics["return_mean"] == pytest.approx(sum(returns[:known]) / known, rel=1e-4)
    gains = [
        float(estimates.q[each.state.decision].min() - archer.critic.estimate_values([each.sample]).q.min())
        * float(expected[each.state.decision])
        for each in fresh
        if each.state.decision < known
    ]
    improvement = sum(gains) / known / archer.critic.std**2
    assert check.metrics["critic_improvement"] == pytest.approx(improvement, rel=1e-3, abs=1e-6), "of known returns"


def test_step_of_cut_episodes_alone_does_not_confirm_the_critic(tmp_path: Path) -> None:
    archer = make_archer(tmp_path, Echo(), algo__truncated="bootstrap")
    cut = [talk(index, status=Status.TRUNCATED_TOKENS) for index in range(2)]
    played = [Group(task=each.task, trajectories=(each,)) for each in cut]
    fresh = asyncio.run(archer.sample(rollout_of(played, 1)))
    found = archer.estimate(rollout_of(played, 1), fresh, make_learner(settings_of(algo__kl_coef=0.0)))
    assert found is not None and found.metrics["critic_trust"] == 0 and "q_error" not in found.metrics


def test_update_without_trust_changes_nothing() -> None:
    config = settings_of(algo__loss="reinforce", algo__estimator="archer")
    learner = make_learner(config)
    samples = [replace(utterance_sample([3, 4], [20], [-4.0], 1.0), trajectory=0)]
    estimated = build_estimate(
        [talk(0)],
        samples,
        torch.ones(1),
        {},
        actor_settings(needs=Needs(policy_logprobs=True, ref_logprobs=True)),
        learner,
    )
    before = weights(learner.model)
    updated = update(learner, estimated, update_settings(config.algo, config.critic, config.train, config.seed), 0, 0.0)
    assert updated.metrics == {"idle_steps": 1.0} and updated.idle is IdleReason.UNTRUSTED_CRITIC
    assert all(torch.equal(before[name], value) for name, value in weights(learner.model).items())


def test_estimate_gives_each_token_the_advantage_of_its_utterance(tmp_path: Path) -> None:
    archer = make_archer(tmp_path, Echo())
    _, _, found = second_step(archer)
    for sample, tokens in zip(found.samples, found.advantages, strict=True):
        assert len(tokens[sample.mask].unique()) == 1 and tokens[~sample.mask].abs().sum() == 0
    returns = decisions_of(list(map(talk, range(4))), archer.settings).discounted_returns()
    assert archer.critic.std == pytest.approx(float(returns.std(correction=0))) != 1, "of the first step"
    assert found.metrics["replay_trajectories"] == 6 and found.returns is None


def test_whitened_advantages_have_mean_zero(tmp_path: Path) -> None:
    archer = make_archer(tmp_path, Echo(), algo__estimator__whiten=True)
    fresh = act(archer)
    found = archer.estimate(rollout_of(groups(), 1), fresh, make_learner(settings_of(algo__kl_coef=0.0)))
    assert found is not None
    numbers = torch.stack([each[each != 0][0] for each in found.advantages])
    assert float(numbers.mean()) == pytest.approx(0, abs=1e-5) and float(numbers.std()) == pytest.approx(1, abs=1e-3)


def test_critic_has_the_learning_rate_of_its_training_step(tmp_path: Path) -> None:
    archer = make_archer(tmp_path, Echo())
    scheduled = list[int]()
    archer.critic.optimizer.schedule = lambda step: scheduled.append(step) or 1.0  # type: ignore[func-returns-value]
    archer.estimate(rollout_of(groups(), 1), act(archer), make_learner(settings_of(algo__kl_coef=0.0)))
    assert set(scheduled) == {0}, "counted from 0, as for the policy"


def test_actor_raises_the_probability_of_advantageous_utterances() -> None:
    config = settings_of(algo__kl_coef=0.0, algo__entropy_coef=0.0, algo__loss="reinforce", algo__estimator="archer")
    learner = make_learner(config)
    samples = [
        replace(utterance_sample([3, 4], [token], [-4.0], 1.0), trajectory=index)
        for index, token in enumerate((20, 21))
    ]

    def logprobs() -> torch.Tensor:
        found = build_estimate(
            [talk(0)] * 2, samples, torch.zeros(2), {}, actor_settings(needs=Needs(policy_logprobs=True)), learner
        )
        return torch.stack([each[2] for each in found.old_logprobs])

    before = logprobs()
    estimated = build_estimate([talk(0)] * 2, samples, torch.tensor([1.0, -1.0]), {}, actor_settings(), learner)
    update(learner, estimated, update_settings(config.algo, config.critic, config.train, config.seed), 0)
    after = logprobs()
    assert after[0] > before[0] and after[1] < before[1]


def test_effective_samples_fall_as_the_policy_leaves_the_replay(tmp_path: Path) -> None:
    archer = make_archer(tmp_path, Echo())
    fresh = act(archer)
    stored = [each.stored_sample() for each in fresh]
    near, far = (effective_share(stored, make_learner(settings_of(), moved=moved), 1000) for moved in (0.0, 0.3))
    assert 1 / 5 <= far < near <= 1


def test_sampler_limits_tokens_by_context_and_summaries() -> None:
    sizes: list[int] = []
    addresses: list[int] = []

    class Recorder(Echo):
        def open(self, key: Any) -> Any:
            recorder = self
            addresses.append(key.address)

            class Session:
                async def __aenter__(self) -> Any:
                    return self

                async def __aexit__(self, *error: object) -> None: ...

                async def generate(self, ids: Any, sampling: Sampling, restart: bool = False) -> Any:
                    sizes.append(sampling.max_tokens)
                    async with recorder.engine.open(key) as session:
                        return await session.generate(ids, sampling)

            return Session()

    sampler = UtteranceSampler(
        policy=Recorder(), sampling=Sampling(max_tokens=6), summary_tokens=2, max_tokens=12, run_seed=0
    )
    summary = turn_of([3, 4], [5], extends=False, info={"summary": True})
    played = trajectory_of([turn_of([3] * 9, [4], extends=False), summary])
    states = [
        ReplayState(trajectory=trajectory, turn=turn, update=0, decision=0)
        for trajectory, turn in ((played, 0), (played, 1), (talk(0), 0))
    ]
    for step in (1, 2):
        asyncio.run(sampler.sample(states, step=step))
    assert sizes == [3, 2, 6] * 2
    assert len(set(addresses)) == 6, "each state and step has random numbers of its own"


def test_usable_trajectories_leave_out_turns_without_tokens() -> None:
    empty = trajectory_of([turn_of([3], [], extends=False), turn_of([4], [5])])
    cut = talk(1, status=Status.TRUNCATED_TIME)
    group = Group(task=empty.task, trajectories=(empty, cut, talk(2)))
    assert usable_trajectories([group], settings_of().algo) == [cut, talk(2)]
    assert usable_trajectories([group], settings_of(algo__truncated="drop").algo) == [talk(2)]
    imported = Group(task=empty.task, trajectories=(talk(1, status=Status.TRUNCATED_LIMIT),))
    assert usable_trajectories([imported], settings_of(algo__truncated="drop").algo) == []
