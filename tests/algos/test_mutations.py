"""That the tests of advantages would notice: each estimator, broken on purpose, must fail the golden records.

A sign flipped, the mask inverted, a turn that begins one sampled token late. Where no record can show it (no record of
the estimator, or none that discounts by turns) the definition on a fixed batch must.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from advantage_definitions_for_tests import by_definition
from golden_advantages_for_tests import ADVANTAGE_RUNNERS
from golden_for_tests import GOLDEN, Record
from torch import Tensor
from trajectories_for_tests import estimator, random_inputs

from advantages_for_tests import TURN_ADVANTAGES
from turnwise.algos.advantage_types import Advantage, AdvantageInputs, AdvantageResult
from turnwise.algos.advantages import ADVANTAGES

Compute = Callable[[Advantage, AdvantageInputs], AdvantageResult]

RECORDS = {
    "gae": ["token_gae", "step_token_gae"],
    "turn_gae": ["turnwise_gae", "noconcat_gae"],
    "step_gae": ["step_gae", "noconcat_gae"],
    "bi_level_gae": ["bilevel_gae"],
    "grpo": ["grpo", "traj_grpo"],
    "dr_grpo": ["dr_grpo_adv", "traj_grpo"],
    "rloo": ["rloo"],
    "opo": ["opo"],
    "gpg": ["gpg_adv"],
    "pass_at_k": ["passk"],
    "reinforce": ["turn_discounted_return", "reinforce_pp"],
    "reinforce_pp": ["reinforce_pp"],
    "reinforce_pp_baseline": ["reinforce_pp_baseline"],
    "remax": ["remax"],
    "gigpo": ["gigpo"],
}
"""Golden records of each estimator. Those not listed, such as arpo, brpo and turn_grpo, have none."""
BATCH = random_inputs(seed=5, rows=8, columns=12, density=0.7, coarse=False)


def flipped_sign(compute: Compute) -> Compute:
    def broken(self: Advantage, inputs: AdvantageInputs) -> AdvantageResult:
        result = compute(self, inputs)
        return replace(result, advantages=-result.advantages)

    return broken


def inverted_mask(compute: Compute) -> Compute:
    return lambda self, inputs: compute(self, replace(inputs, mask=~inputs.mask))


def late_turns(compute: Compute) -> Compute:
    """Every turn begins one sampled token too late."""

    def late(turn_ids: Tensor, mask: Tensor) -> Tensor:
        sampled = turn_ids[mask]
        return turn_ids.masked_scatter(mask, torch.cat([sampled[:1], sampled[:-1]]))

    def broken(self: Advantage, inputs: AdvantageInputs) -> AdvantageResult:
        rows = [late(*row) for row in zip(inputs.turn_ids, inputs.mask, strict=True)]
        return compute(self, replace(inputs, turn_ids=torch.stack(rows)))

    return broken


def records_of(name: str) -> list[Record]:
    return [record for record in GOLDEN["records"] if record["algo"] in RECORDS.get(name, [])]


def records_fail(name: str) -> bool:
    """Return whether a golden record of the estimator fails."""
    return any(fails(lambda record=record: ADVANTAGE_RUNNERS[record["algo"]](record)) for record in records_of(name))


def definition_fails(name: str) -> bool:
    advantage = estimator(name)
    expected = by_definition(advantage, BATCH)
    return fails(lambda: torch.testing.assert_close(advantage.compute(BATCH).advantages, expected))


def fails(check: Callable[[], None]) -> bool:
    try:
        check()
    except AssertionError:
        return True
    return False


def break_it(monkeypatch: pytest.MonkeyPatch, name: str, mutation: Callable[[Compute], Compute]) -> None:
    monkeypatch.setattr(ADVANTAGES[name], "compute", mutation(ADVANTAGES[name].compute))


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_correct_estimator_passes(name: str) -> None:
    assert not records_fail(name)
    assert not definition_fails(name)


@pytest.mark.parametrize("mutation", [flipped_sign, inverted_mask])
@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_flipped_sign_and_inverted_mask_are_detected(
    monkeypatch: pytest.MonkeyPatch, name: str, mutation: Callable[[Compute], Compute]
) -> None:
    break_it(monkeypatch, name, mutation)
    assert definition_fails(name)
    assert records_fail(name) == bool(records_of(name))


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_late_turn_boundaries_change_every_estimator_with_turns(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    break_it(monkeypatch, name, late_turns)
    assert definition_fails(name) == (name in TURN_ADVANTAGES)
    assert records_fail(name) == (name in TURN_ADVANTAGES and name != "reinforce_pp" and bool(records_of(name)))
