"""Training on constrained turns: probabilities among the allowed tokens, as they were sampled."""

import pickle
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from active_plan_for_tests import check_equal, gradients
from constraints_for_tests import (
    SCHEMA,
    constraint_of,
    make_engine,
    require_llguidance,
    sample_all,
    trained_model,
    trajectory_of,
)
from episodes_for_tests import renderer
from turnwise.config.load import build
from turnwise.core.constraint import Constraint
from turnwise.core.errors import UserError
from turnwise.core.learner import Needs
from turnwise.core.protocols import Sampling
from turnwise.core.samples import Batch
from turnwise.core.trajectory import Group, Trajectory
from turnwise.data.packing import pack, unpack
from turnwise.data.samples import build_samples
from turnwise.models.head import OutputHead, head_logprobs, output_head
from turnwise.record.steps import IdleReason
from turnwise.record.trajectories import open_replay, trajectory_from_row, trajectory_to_row
from turnwise.run.build_learner import build_coefficients, build_learner, estimate_settings, update_settings
from turnwise.training.estimators.on_policy import estimate
from turnwise.training.learner import LocalLearner
from turnwise.training.update import update

__all__ = ["require_llguidance"]

FREE = Sampling(max_tokens=30, temperature=0.9)
BOUND = replace(FREE, constraint=constraint_of(SCHEMA))
SETTINGS = {"algo.kl_coef": 0.1, "algo.entropy_coef": 0.01, "train.learning_rate": 1e-2, "train.mini_batch": 100}


@cache
def trajectories() -> tuple[Trajectory, ...]:
    """Sample constrained and free turns; the last two samples share a prompt."""
    samplings, prompts = [BOUND, FREE, BOUND, BOUND, FREE], [1, 2, 3, 4, 4]
    said = sample_all(make_engine(trained_model()), samplings, prompts)
    numbered = enumerate(zip(said, prompts, strict=True))
    return tuple(trajectory_of(each, number, reward=float(index % 2)) for index, (each, number) in numbered)


def packed(given: Sequence[Trajectory] | None = None) -> Batch:
    return pack(build_samples(trajectories() if given is None else given, renderer().grammars.allowed_sets))


def make_learner() -> LocalLearner:
    config = build({}, list(SETTINGS.items()))
    return build_learner(config.algo, config.critic, config.train, trained_model())


def test_learner_scores_what_the_sampler_reported() -> None:
    batch = packed()
    (scores,) = make_learner().score([batch], Needs(policy_logprobs=True, entropy=True, ref_logprobs=True))
    for name in ("policy_logprobs", "ref_logprobs"):
        found = unpack(batch, getattr(scores, name))
        for trajectory, logprobs in zip(trajectories(), found, strict=True):
            assert logprobs.tolist() == pytest.approx(list(trajectory.turns[0].action_logprobs), abs=1e-5)
    (free,) = make_learner().score([replace(batch, allowed=None)], Needs(policy_logprobs=True, entropy=True))
    bound = unpack(batch, scores.policy_logprobs - free.policy_logprobs)
    assert [float(each.max()) > 1 for each in bound] == [turn_is_bound(each) for each in trajectories()]


def test_free_samples_beside_constrained_ones_keep_all_tokens() -> None:
    """A model may have more tokens than its tokenizer, where the sets end."""
    samples = [
        sample if sample.allowed is None else replace(sample, allowed=tuple(each[:10] for each in sample.allowed))
        for sample in build_samples(trajectories(), renderer().grammars.allowed_sets)
    ]
    batch = pack(samples)
    (scores,) = make_learner().score([batch], Needs(policy_logprobs=True))
    assert scores.policy_logprobs is not None
    for trajectory, logprobs in zip(trajectories(), unpack(batch, scores.policy_logprobs), strict=True):
        if not turn_is_bound(trajectory):
            assert logprobs.tolist() == pytest.approx(list(trajectory.turns[0].action_logprobs), abs=1e-5)


def test_packed_constraints_follow_their_samples() -> None:
    samplings = [replace(FREE, constraint=constraint_of({"enum": ["a", "b"]})), BOUND]
    said = sample_all(make_engine(trained_model()), samplings, [5, 6])
    shortest_first = [trajectory_of(each, number) for each, number in zip(said, [5, 6], strict=True)]
    batch = packed(shortest_first)
    assert batch.order == (1, 0)
    (scores,) = make_learner().score([batch], Needs(policy_logprobs=True))
    assert scores.policy_logprobs is not None
    for trajectory, logprobs in zip(shortest_first, unpack(batch, scores.policy_logprobs), strict=True):
        assert logprobs.tolist() == pytest.approx(list(trajectory.turns[0].action_logprobs), abs=1e-5)


def turn_is_bound(trajectory: Trajectory) -> bool:
    return trajectory.turns[0].constraint is not None


def plain_gradients(batch: Batch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return what `active_plan_for_tests.gradients` does, by one forward per sample, a mask and autograd."""
    model = trained_model()
    model.set_attn_implementation("eager")
    model.requires_grad_(True)
    samples = build_samples(trajectories(), renderer().grammars.allowed_sets)
    columns: list[tuple[Tensor, Tensor]] = []
    for index in batch.order:
        sample = samples[index]
        sampled = sample.mask.nonzero()[:, 0]
        logits = model(sample.ids[None]).logits[0, sampled - 1] / sample.temperatures[sampled, None]
        if sample.allowed is not None:
            allowed = [[mask[token // 8] >> token % 8 & 1 for token in range(1600)] for mask in sample.allowed]
            logits = logits.masked_fill(~torch.tensor(allowed).bool(), float("-inf"))
        logprobs = logits.log_softmax(-1)
        entropy = -(logprobs.exp() * logprobs.masked_fill(logprobs.isinf(), 0)).sum(-1)
        columns.append((logprobs.gather(1, sample.ids[sampled, None])[:, 0], entropy))
    logprobs, entropy = (torch.cat(each) for each in zip(*columns, strict=True))
    (logprobs @ torch.linspace(-1, 1, len(logprobs)) + 0.3 * entropy.sum()).backward()
    grads = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    return logprobs.detach(), entropy.detach(), grads


def test_gradients_are_those_of_a_masked_softmax() -> None:
    check_equal(gradients(trained_model(), packed()), plain_gradients(packed()))


def test_head_in_chunks_has_the_gradients_of_a_masked_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of GPUs."""
    monkeypatch.setattr("turnwise.models.head.chunk_rows", lambda vocabulary: 7)
    batch = packed()
    assert batch.allowed is not None
    count, generator = len(batch.targets), torch.Generator().manual_seed(0)
    head = output_head(trained_model())
    assert head is not None
    found = []
    for softcap in (None, 3.0):
        weight = head.weight.detach().clone().requires_grad_()
        hidden = torch.randn(count, weight.shape[1], generator=generator).requires_grad_()
        capped = OutputHead(weight=weight, bias=None, softcap=softcap)
        logprobs, entropy = head_logprobs(capped, hidden, batch.targets, batch.temperatures, batch.allowed)
        (logprobs @ torch.linspace(-1, 1, count) + 0.3 * entropy.sum()).backward()
        ours = (logprobs.detach(), entropy.detach(), hidden.grad, weight.grad)
        hidden.grad = weight.grad = None
        logits = hidden @ weight.t()
        logits = logits if softcap is None else softcap * (logits / softcap).tanh()
        sets = batch.allowed.sets[batch.allowed.rows]
        allowed = (sets[..., None] >> torch.arange(8).to(torch.uint8) & 1).flatten(1).bool()[:, : weight.shape[0]]
        allowed[batch.allowed.rows < 0] = True
        expected = (logits / batch.temperatures[:, None]).masked_fill(~allowed, float("-inf")).log_softmax(-1)
        chosen = expected.gather(1, batch.targets[:, None])[:, 0]
        entropies = -(expected.exp() * expected.masked_fill(~allowed, 0)).sum(-1)
        (chosen @ torch.linspace(-1, 1, count) + 0.3 * entropies.sum()).backward()
        found.append((ours, (chosen.detach(), entropies.detach(), hidden.grad, weight.grad)))
    for ours, theirs in found:
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_step_on_constrained_turns_sees_no_mismatch() -> None:
    config = build({}, list(SETTINGS.items()))
    learner = build_learner(config.algo, config.critic, config.train, trained_model())
    groups = [Group(task=trajectories()[0].task, trajectories=trajectories())]
    settings = estimate_settings(config.algo, config.reward, allowed_sets=renderer().grammars.allowed_sets)
    estimated = estimate(groups, learner, settings, build_coefficients(config.algo))
    assert not isinstance(estimated, IdleReason)
    metrics = update(
        learner, estimated, update_settings(config.algo, config.critic, config.train, config.seed), 0, 1.0
    ).metrics
    assert metrics["mismatch"] < 1e-6
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-6)


def test_batch_keeps_constraints_in_pickles() -> None:
    """Pickling is how batches reach learners in other processes."""
    batch = packed()
    sent = pickle.loads(pickle.dumps(batch))
    assert batch.allowed is not None
    torch.testing.assert_close(sent.allowed.sets, batch.allowed.sets)
    assert len(batch.allowed.sets) < len(batch.targets)  # equal sets are stored once


def test_trajectory_keeps_its_constraint_in_files(tmp_path: Path) -> None:
    trajectory = trajectories()[0]
    row = trajectory_to_row(trajectory, step=0, group=0, decode=renderer().decode)
    assert trajectory_from_row(row) == trajectory
    replay = open_replay(tmp_path, capacity=4)
    replay.add(trajectory)
    (entry,) = replay.entries
    assert replay.read(entry).turns[0].constraint == trajectory.turns[0].constraint


def test_samples_of_constrained_turns_need_the_grammar() -> None:
    with pytest.raises(UserError, match="response_format or a required tool_choice"):
        build_samples(trajectories())
    assert build_samples([trajectories()[1]])[0].allowed is None


def test_samples_refuse_a_reply_that_the_grammar_does_not_allow() -> None:
    trajectory = trajectories()[0]
    other = replace(trajectory.turns[0], constraint=Constraint(grammar='start: "x"'))
    with pytest.raises(UserError, match="does not match its reply"):
        packed([replace(trajectory, turns=(other,))])
