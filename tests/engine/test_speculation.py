from functools import cache
from unittest.mock import patch

import pytest
import torch

from models_for_tests import FAMILIES, random_model
from talks_for_tests import STOP_ID, full_forward_logprobs, key, make_engine, prompt, run_talks
from turnwise.core.protocols import Completion, Sampling
from turnwise.engine.cpu import runner
from turnwise.engine.cpu.sampling import MAX_DRAFT_TOKENS, NgramDrafter, min_draft_probability
from turnwise.engine.native.engine import NativeEngine

NEVER, ALWAYS = 2.0, 0.0
GREEDY = Sampling(max_tokens=20, temperature=0.0)
SAMPLINGS = (
    Sampling(max_tokens=20, temperature=0.3),
    pytest.param(Sampling(max_tokens=9, temperature=0.2), marks=pytest.mark.soak),
    GREEDY,
    Sampling(max_tokens=20, temperature=0.4, top_p=0.9, stop=("AB", "C")),
)


def test_drafter_chains_the_most_frequent_next_tokens() -> None:
    drafter = NgramDrafter(stop_ids={9})
    for tail, token in [((1, 2), 3), ((1, 2), 3), ((1, 2), 4), ((2, 3), 5), ((3, 5), 9), ((5, 9), 7)]:
        drafter.observe(tail, token)
    assert drafter.draft((1, 2), max_tokens=MAX_DRAFT_TOKENS, min_probability=0.0) == [
        3,
        5,
        9,
    ]  # a turn ends with its stop token
    assert drafter.draft((1, 2), max_tokens=2, min_probability=0.0) == [3, 5]
    assert drafter.draft((1, 2), max_tokens=MAX_DRAFT_TOKENS, min_probability=0.5) == [
        3
    ]  # 2 of 3, plus one unseen: 2 / 4
    assert drafter.draft((1, 2), max_tokens=MAX_DRAFT_TOKENS, min_probability=0.51) == []
    assert drafter.draft((8, 8), max_tokens=MAX_DRAFT_TOKENS, min_probability=0.0) == []
    drafter.reset()
    assert drafter.draft((1, 2), max_tokens=MAX_DRAFT_TOKENS, min_probability=0.0) == []


def test_min_draft_probability_grows_with_sessions_and_parameters() -> None:
    assert min_draft_probability(1, 10**6) < min_draft_probability(128, 10**6) < min_draft_probability(10**6, 10**6) < 1
    assert min_draft_probability(8, 10**6) < min_draft_probability(8, 10**8)


@cache
def _talked(family: str, least: float, sampling: Sampling, seeds: int = 3) -> tuple[list, dict]:
    shared = prompt(1, 21)
    talks = [
        (key(seed, member), [[*shared, *prompt(seed, 3 * seed)], prompt(50 + member, 4), prompt(60 + seed, 12)])
        for seed in range(seeds)
        for member in range(2)
    ]
    engine = make_engine(family, slots=4)
    with patch.object(runner, "min_draft_probability", lambda sessions, parameters: least):
        said = run_talks(engine, talks, sampling)
    return list(zip(talks, said, strict=True)), engine.stats().counts


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_speculation_does_not_change_what_is_sampled(sampling: Sampling) -> None:
    plain, _ = _talked("llama", NEVER, sampling)
    drafted, counts = _talked("llama", ALWAYS, sampling)
    assert 0 < counts["accepted_tokens"] < counts["drafted_tokens"]  # both right and wrong drafts occur
    for (_, one), (_, other) in zip(plain, drafted, strict=True):
        assert [(each.ids, each.stop) for each in one] == [(each.ids, each.stop) for each in other]
        ours, theirs = ([value for each in said for value in each.logprobs] for said in (one, other))
        torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_speculation_logprobs_match_a_full_forward(family: str) -> None:
    said: list[Completion]
    talked, counts = _talked(family, ALWAYS, Sampling(max_tokens=10, temperature=0.3), seeds=2)
    assert counts["drafted_tokens"] > 0
    for (_, contexts), said in talked:
        ours = torch.tensor([value for completion in said for value in completion.logprobs])
        theirs = full_forward_logprobs(family, contexts, said, 0.3)
        torch.testing.assert_close(ours, theirs, atol=5e-4, rtol=2e-3)


def test_speculation_draft_is_shared_by_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    sampling, contexts = Sampling(max_tokens=12, temperature=0.0), [prompt(1, 21)]
    talks = [(key(1, member), contexts) for member in range(3)]
    words = list(run_talks(make_engine(), talks, sampling)[0][0].ids)
    first = tuple(contexts[0][-2:])
    monkeypatch.setattr(
        NgramDrafter,
        "draft",
        lambda self, bigram, max_tokens, min_probability: words[:max_tokens] if bigram == first else [],
    )
    engine = make_engine()
    for said in run_talks(engine, talks, sampling):
        assert list(said[0].ids) == words
        theirs = full_forward_logprobs("llama", contexts, said, 1.0)
        torch.testing.assert_close(torch.tensor(said[0].logprobs), theirs, atol=2e-4, rtol=1e-3)
    assert engine.stats().counts["accepted_tokens"] == 3 * MAX_DRAFT_TOKENS


def test_speculation_saves_passes() -> None:
    _, plain = _talked("llama", NEVER, GREEDY)
    _, drafted = _talked("llama", ALWAYS, GREEDY)
    assert plain["drafted_tokens"] == 0
    assert drafted["sampled_tokens"] == plain["sampled_tokens"]
    assert drafted["passes"] < 0.8 * plain["passes"]


def test_drafter_is_reset_with_the_last_session() -> None:
    """A run resumed at the start of a step then batches, and rounds, like one that was not interrupted."""
    engine = make_engine(slots=4)
    talks = [(key(seed), [prompt(1, 9), prompt(2, 5)]) for seed in range(4)]
    seen = []
    for _ in range(2):
        before = engine.stats().counts
        run_talks(engine, talks, Sampling(max_tokens=12, temperature=0.3))
        seen.append({name: engine.stats().counts[name] - before[name] for name in before})
    assert seen[0] == seen[1]
    assert seen[0]["drafted_tokens"] > 0


def test_engine_rejects_a_model_with_another_attention() -> None:
    with pytest.raises(ValueError, match="attn_implementation"):
        NativeEngine(random_model("llama", "sdpa"), slots=1, stop_ids=[STOP_ID], decode=str)
