import pytest
import torch

from models_for_tests import FAMILIES, random_model
from talks_for_tests import STOP_ID, full_forward_logprobs, key, make_engine, prompt, run_talks
from turnwise.core.protocols import Completion, Sampling
from turnwise.engine.native import runner
from turnwise.engine.native.engine import NativeEngine
from turnwise.engine.native.speculation import MAX_DRAFT_TOKENS, NgramDrafter, min_draft_probability

NEVER, ALWAYS = 2.0, 0.0
SAMPLINGS = (
    Sampling(max_tokens=30, temperature=0.3),
    Sampling(max_tokens=9, temperature=0.2),
    Sampling(max_tokens=30, temperature=0.0),
    Sampling(max_tokens=30, temperature=0.4, top_p=0.9, stop=("AB", "C")),
)


def test_a_guess_is_what_followed_most_often_and_goes_on_from_there() -> None:
    guesser = NgramDrafter(stop_ids={9})
    for tail, token in [((1, 2), 3), ((1, 2), 3), ((1, 2), 4), ((2, 3), 5), ((3, 5), 9), ((5, 9), 7)]:
        guesser.learn(tail, token)
    assert guesser.guess((1, 2), most=MAX_DRAFT_TOKENS, least=0.0) == [3, 5, 9]  # a turn ends with its stop token
    assert guesser.guess((1, 2), most=2, least=0.0) == [3, 5]
    assert guesser.guess((1, 2), most=MAX_DRAFT_TOKENS, least=0.5) == [3]  # 2 of 3 seen, and one unseen: 2 / 4
    assert guesser.guess((1, 2), most=MAX_DRAFT_TOKENS, least=0.51) == []
    assert guesser.guess((8, 8), most=MAX_DRAFT_TOKENS, least=0.0) == []
    guesser.forget()
    assert guesser.guess((1, 2), most=MAX_DRAFT_TOKENS, least=0.0) == []


def test_guesses_must_be_surer_the_more_a_token_costs_beside_a_pass() -> None:
    assert min_draft_probability(1, 10**6) < min_draft_probability(128, 10**6) < min_draft_probability(10**6, 10**6) < 1
    assert min_draft_probability(8, 10**6) < min_draft_probability(8, 10**8)


def _talked(family: str, least: float, sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> tuple[list, dict]:
    monkeypatch.setattr(runner, "min_draft_probability", lambda sessions, parameters: least)
    shared = prompt(1, 21)
    talks = [
        (key(seed, member), [[*shared, *prompt(seed, 3 * seed)], prompt(50 + member, 4), prompt(60 + seed, 12)])
        for seed in range(3)
        for member in range(2)
    ]
    engine = make_engine(family, slots=4)
    said = run_talks(engine, talks, sampling)
    return list(zip(talks, said, strict=True)), engine.stats().counts


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_guessing_changes_nothing_that_is_sampled(sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = _talked("llama", NEVER, sampling, monkeypatch)
    guessed, counts = _talked("llama", ALWAYS, sampling, monkeypatch)
    assert 0 < counts["right_guesses"] < counts["guessed_tokens"]  # both kinds occur
    for (_, one), (_, other) in zip(plain, guessed, strict=True):
        assert [(each.ids, each.stop) for each in one] == [(each.ids, each.stop) for each in other]
        ours, theirs = ([value for each in said for value in each.logprobs] for said in (one, other))
        torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_with_guesses_log_probabilities_still_equal_a_plain_full_forward(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Completion]
    talked, counts = _talked(family, ALWAYS, Sampling(max_tokens=12, temperature=0.3), monkeypatch)
    assert counts["guessed_tokens"] > 0
    for (_, contexts), said in talked:
        ours = torch.tensor([value for completion in said for value in completion.logprobs])
        theirs = full_forward_logprobs(family, contexts, said, 0.3)
        torch.testing.assert_close(ours, theirs, atol=5e-4, rtol=2e-3)


def test_members_of_a_group_share_the_guess_at_their_first_words(monkeypatch: pytest.MonkeyPatch) -> None:
    sampling, contexts = Sampling(max_tokens=12, temperature=0.0), [prompt(1, 21)]
    talks = [(key(1, member), contexts) for member in range(3)]
    words = list(run_talks(make_engine(), talks, sampling)[0][0].ids)
    first = tuple(contexts[0][-2:])
    monkeypatch.setattr(NgramDrafter, "guess", lambda self, tail, most, least: words[:most] if tail == first else [])
    engine = make_engine()
    for said in run_talks(engine, talks, sampling):
        assert list(said[0].ids) == words
        theirs = full_forward_logprobs("llama", contexts, said, 1.0)
        torch.testing.assert_close(torch.tensor(said[0].logprobs), theirs, atol=2e-4, rtol=1e-3)
    assert engine.stats().counts["right_guesses"] == 3 * MAX_DRAFT_TOKENS


def test_a_right_guess_saves_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = Sampling(max_tokens=30, temperature=0.0)
    _, plain = _talked("llama", NEVER, sampling, monkeypatch)
    _, guessed = _talked("llama", ALWAYS, sampling, monkeypatch)
    assert plain["guessed_tokens"] == 0
    assert guessed["sampled_tokens"] == plain["sampled_tokens"]
    assert guessed["passes"] < 0.8 * plain["passes"]


def test_what_was_guessed_from_is_forgotten_with_the_last_session() -> None:
    """So that a run resumed at a step's start batches, and rounds, as one that was left alone."""
    engine = make_engine(slots=4)
    talks = [(key(seed), [prompt(1, 9), prompt(2, 5)]) for seed in range(4)]
    seen = []
    for _ in range(2):
        before = engine.stats().counts
        run_talks(engine, talks, Sampling(max_tokens=12, temperature=0.3))
        seen.append({name: engine.stats().counts[name] - before[name] for name in before})
    assert seen[0] == seen[1]
    assert seen[0]["guessed_tokens"] > 0


def test_a_model_with_another_attention_is_refused() -> None:
    with pytest.raises(ValueError, match="attn_implementation"):
        NativeEngine(random_model("llama", "sdpa"), slots=1, stop_ids=[STOP_ID], decode=str)
