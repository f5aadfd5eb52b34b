"""Each estimator against its definition, for all inputs; and the inputs that it reads."""

from dataclasses import replace

import pytest
import torch
from advantage_definitions_for_tests import DEFINITIONS, by_definition
from hypothesis import given
from hypothesis import strategies as st
from trajectories_for_tests import compute, estimator, inputs, random_inputs

from turnwise.algos.advantage_types import AdvantageInputs
from turnwise.algos.advantages import ADVANTAGES


def test_every_advantage_has_a_definition() -> None:
    assert DEFINITIONS.keys() == ADVANTAGES.keys()


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
@given(given=inputs(), by_std=st.booleans())
def test_advantage_equals_its_definition(name: str, given: AdvantageInputs, by_std: bool) -> None:
    """Unsampled columns hold what is not a number: no estimator reads them."""
    advantage = estimator(name, by_std=by_std)
    expected = by_definition(advantage, given)
    torch.testing.assert_close(advantage.compute(given).advantages, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", sorted(name for name, advantage in ADVANTAGES.items() if advantage.needs_critic))
@given(given=inputs())
def test_critic_target_is_the_raw_advantage_plus_the_value(name: str, given: AdvantageInputs) -> None:
    """Estimators over turns add the value at the position where a turn is valued to each of the turn's tokens."""
    result = estimator(name, whiten=True).compute(given)
    assert given.values is not None and result.returns is not None
    silent = estimator(name).compute(replace(given, values=torch.where(given.mask, 0.0, given.values)))
    assert silent.returns is not None
    torch.testing.assert_close(silent.returns, silent.advantages)
    gap = torch.where(given.mask, result.returns - compute(name, given), 0.0)
    at = {"turn_gae": -1, "step_gae": 0}.get(name)
    for row in range(given.mask.shape[0]):
        sampled, turns = given.mask[row], given.turn_ids[row][given.mask[row]]
        values, found = given.values[row][sampled], gap[row][sampled]
        for turn in turns.unique():
            said = values[turns == turn] if at is None else values[turns == turn][at].expand(int((turns == turn).sum()))
            torch.testing.assert_close(found[turns == turn], said)
        assert (result.returns[row][~sampled] == 0).all()


@pytest.mark.parametrize("name", ["turn_gae", "step_gae"])
@given(given=inputs())
def test_whitening_by_token_counts_a_turn_as_often_as_it_has_tokens(name: str, given: AdvantageInputs) -> None:
    raw = [float(each) for each in compute(name, given)[given.mask]]
    got = compute(name, given, whiten="token")[given.mask]
    mean = sum(raw) / len(raw) if raw else 0.0
    variance = sum((each - mean) ** 2 for each in raw) / max(1, len(raw) - 1)
    expected = torch.tensor([(each - mean) / (variance + 1e-8) ** 0.5 for each in raw], dtype=torch.float64)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_advantage_reads_only_the_inputs_it_declares(name: str) -> None:
    given, advantage = random_inputs(seed=3, rows=9, columns=12, density=0.8, coarse=False), ADVANTAGES[name]
    needed = {
        "values": advantage.needs_critic,
        "bootstrap": advantage.needs_critic,
        "state_ids": advantage.needs_states,
        "greedy_returns": advantage.needs_greedy,
    }
    for field, need in needed.items():
        without = replace(given, **{field: None})
        if need and field != "bootstrap":
            with pytest.raises(ValueError, match="needs"):
                compute(name, without)
        else:
            assert torch.equal(compute(name, without), compute(name, given)) == (not need)
    regrouped = replace(given, group_ids=torch.arange(9))
    assert torch.equal(compute(name, regrouped), compute(name, given)) == (not advantage.needs_groups)
    assert (not advantage.needs_critic) == (estimator(name).compute(given).returns is None)
