"""Constrained sampling by the native engine, on slots and on pages."""

import json
import math
from dataclasses import replace

import pytest
import torch

from constraints_for_tests import (
    SCHEMA,
    constraint_of,
    make_engine,
    prompt,
    require_llguidance,
    sample_all,
    trained_model,
)
from episodes_for_tests import renderer
from turnwise.core.constraint import Constraint, ConstraintError
from turnwise.core.protocols import Completion, Sampling
from turnwise.core.trajectory import Stop

__all__ = ["require_llguidance"]

FREE = Sampling(max_tokens=40, temperature=0.9)
BOUND = replace(FREE, constraint=constraint_of(SCHEMA))
MIXED = [FREE, BOUND, FREE, BOUND, replace(BOUND, constraint=constraint_of({"enum": ["yes", "no"]})), FREE]
PROMPTS = [1, 1, 2, 3, 1, 1]  # constrained and free members of one group among them


def text_of(completion: Completion) -> str:
    return renderer().decode(completion.ids[:-1])


def masked_logprobs(completion: Completion, number: int, temperature: float) -> list[float]:
    """Return the log-probabilities by a plain forward, a mask and a softmax."""
    ids = [*prompt(number), *completion.ids]
    model = trained_model()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, len(prompt(number)) - 1 : -1] / temperature
    assert completion.constraint is not None
    matcher = renderer().grammars.matcher(completion.constraint)
    found = []
    for row, token in zip(logits, completion.ids, strict=True):
        packed = matcher.allowed()
        allowed = [each for each in range(len(row)) if packed[each // 8] >> each % 8 & 1]
        found.append(float(row[token] - row[allowed].logsumexp(0)))
        matcher.accept(token)
    return found


@pytest.mark.parametrize("paged", [False, True], ids=["slots", "pages"])
def test_constrained_turns_match_and_have_masked_logprobs(paged: bool) -> None:
    said = sample_all(make_engine(trained_model(), paged=paged), MIXED, PROMPTS)
    for sampling, completion, number in zip(MIXED, said, PROMPTS, strict=True):
        assert completion.constraint == sampling.constraint
        if sampling.constraint is None:
            continue
        assert completion.stop is Stop.EOS
        value = json.loads(text_of(completion))
        assert value in ("yes", "no") or (set(value) == set(SCHEMA["properties"]) and 0 <= value["size"] <= 99)
        expected = masked_logprobs(completion, number, 0.9)
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("paged", [False, True], ids=["slots", "pages"])
def test_free_turns_are_the_same_beside_constrained_ones(paged: bool) -> None:
    free = [number for number, each in enumerate(MIXED) if each.constraint is None]
    together = sample_all(make_engine(trained_model(), paged=paged), MIXED, PROMPTS)
    alone = sample_all(make_engine(trained_model(), paged=paged), [FREE] * len(MIXED), PROMPTS)
    assert [together[number].ids for number in free] == [alone[number].ids for number in free]


def test_slots_and_pages_sample_the_same_constrained_tokens() -> None:
    slots, pages = (sample_all(make_engine(trained_model(), paged=each), MIXED, PROMPTS) for each in (False, True))
    assert [each.ids for each in slots] == [each.ids for each in pages]


def test_forced_tokens_have_probability_one() -> None:
    (said,) = sample_all(make_engine(trained_model()), [replace(FREE, constraint=constraint_of({"const": "é1"}))], [1])
    assert text_of(said) == '"é1"'
    assert said.ids[-1] in renderer().stop_ids and said.logprobs[-1] == pytest.approx(0.0, abs=1e-6)
    assert sum(said.logprobs) > -30


@pytest.mark.parametrize("changes", [{"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.5}], ids=str)
def test_constraints_hold_with_other_sampling_settings(changes: dict[str, float]) -> None:
    (said,) = sample_all(make_engine(trained_model()), [replace(BOUND, **changes)], [2])
    assert set(json.loads(text_of(said))) == set(SCHEMA["properties"])
    assert all(math.isfinite(each) and each <= 1e-6 for each in said.logprobs)


@pytest.mark.parametrize("paged", [False, True], ids=["slots", "pages"])
def test_constrained_turn_is_cut_at_its_token_limit(paged: bool) -> None:
    (said,) = sample_all(make_engine(trained_model(), paged=paged), [replace(BOUND, max_tokens=3)], [1])
    assert (len(said.ids), said.stop) == (3, Stop.LENGTH)


@pytest.mark.parametrize("paged", [False, True], ids=["slots", "pages"])
def test_constraint_that_fails_in_a_step_fails_its_turn_alone(paged: bool) -> None:
    many = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(600)}}
    samplings = [FREE, replace(FREE, constraint=constraint_of(many))]
    engine = make_engine(trained_model(), paged=paged)
    with pytest.raises(ConstraintError, match="2000"):
        sample_all(engine, samplings, [1, 2])
    assert sample_all(engine, [FREE], [1])[0].ids


def test_engine_without_grammars_refuses_constraints() -> None:
    engine = make_engine(trained_model())
    engine._grammars = None
    with pytest.raises(ConstraintError, match="tokenizer"):
        sample_all(engine, [BOUND], [1])


def test_invalid_grammar_is_refused() -> None:
    with pytest.raises(ConstraintError):
        renderer().grammars.matcher(Constraint(grammar="start: nothing"))
