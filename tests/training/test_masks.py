"""Two separate masks: which sampled tokens the loss is taken over, and which the advantage."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from episodes_for_tests import group_of, trajectory_of, turn_of
from learners_for_tests import estimate_of, gradients, learn, make_learner, settings_of
from turnwise.algos.advantages import ADVANTAGES
from turnwise.core.errors import UserError
from turnwise.core.trajectory import Group, Span, Turn
from turnwise.data.samples import PARTS, rule_masks
from turnwise.render.parse import parse_pieces
from turnwise.run.build_learner import token_rule, update_settings
from turnwise.training.update import train_samples

THINK, ANSWER = Span(name="think", start=0, end=2), Span(name="answer", start=2, end=4)


def thoughtful(reward: float, extends: bool = False) -> Turn:
    """Two tokens of thinking, two of an answer, the end."""
    return turn_of([3] * 9, [4, 5, 6, 7, 8], extends=extends, reward=reward, spans=(THINK, ANSWER))


def silent(reward: float) -> Turn:
    return turn_of([9], [10, 11], reward=reward)


def thinkers() -> Group:
    return group_of([[thoughtful(1.0), silent(0.0)], [thoughtful(0.0), silent(0.5)], [thoughtful(0.0)]])


def mask_of(turn: Turn, rule: str) -> list[int]:
    return rule_masks([trajectory_of([turn])], token_rule(rule, "algo.loss_tokens"))[0].long().tolist()


def test_rules_choose_by_span_turn_by_turn() -> None:
    chosen = {
        name: rule_masks(thinkers().trajectories[:1], token_rule(name, "algo.loss_tokens"))[0].long().tolist()
        for name in ("sampled", "think", "answer", "think+answer")
    }
    assert chosen == {
        "sampled": [1] * 7,
        "think": [1, 1, 0, 0, 0, 0, 0],
        "answer": [0, 0, 1, 1, 0, 0, 0],
        "think+answer": [1, 1, 1, 1, 0, 0, 0],
    }


SECTIONED = (
    "<think>", "<observation>", "o", "p", "</observation>", "<reasoning>", "r", "</reasoning>",
    "<prediction>", "q", "</prediction>", "</think>", "<answer>", "Left", "</answer>", "end",
)  # fmt: skip


def sectioned(reward: float = 0.0) -> Turn:
    """A reply that describes, reasons, predicts and answers, with the spans that the parser finds."""
    pieces = [piece.encode() for piece in SECTIONED]
    spans = parse_pieces(pieces, opens_think=False).spans
    return turn_of([3] * 9, list(range(20, 20 + len(pieces))), extends=False, reward=reward, spans=spans)


@pytest.mark.parametrize(
    ("rule", "selected"),
    [
        ("observation", "o p"),
        ("reasoning", "r"),
        ("prediction", "q"),
        ("answer", "Left"),
        ("observation+prediction", "o p q"),
        ("prediction+answer", "q Left"),
        ("think", " ".join(SECTIONED[1:11])),
        ("+".join(PARTS), " ".join((*SECTIONED[1:11], "Left"))),
    ],
)
def test_rules_choose_exactly_the_sections_of_a_reply(rule: str, selected: str) -> None:
    mask = mask_of(sectioned(), rule)
    assert " ".join(piece for piece, chosen in zip(SECTIONED, mask, strict=True) if chosen) == selected


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("observation+", 'unknown part "": there are answer, observation'),
        ("prediction+anser", 'unknown part "anser": did you mean "answer"'),
        ("sampled+answer", 'unknown part "sampled"'),
        ("observation,answer", 'parts joined by "\\+" such as'),
        ("rules:choose", "is not FILE.py:function"),
    ],
)
def test_rule_of_unknown_parts_is_reported(rule: str, reason: str) -> None:
    with pytest.raises(UserError, match=f"^algo.advantage_tokens .*{reason}"):
        token_rule(rule, "algo.advantage_tokens")


def test_loss_and_advantage_follow_the_sections_of_a_reply() -> None:
    config = settings_of(algo__loss_tokens="prediction", algo__advantage_tokens="prediction+answer", algo__kl_coef=0.0)
    groups = [group_of([[sectioned(1.0)], [sectioned(0.0)]])]
    estimated = estimate_of(groups, make_learner(config), config)
    assert estimated is not None
    for each in train_samples(
        estimated, {0, 1}, update_settings(config.algo, config.critic, config.train, config.seed)
    ):
        sampled = each.sample.mask
        assert [SECTIONED[place] for place in each.weights[sampled].nonzero().flatten().tolist()] == ["q"]
        assert [SECTIONED[place] for place in each.advantages[sampled].nonzero().flatten().tolist()] == ["q", "Left"]


def test_shares_of_the_masks_are_recorded_where_they_select() -> None:
    groups = [group_of([[sectioned(1.0)], [sectioned(0.0)]])]
    shares = list[dict[str, float]]()
    for loss, advantage in (("prediction", "sampled"), ("think+answer", "observation"), ("sampled", "sampled")):
        config = settings_of(algo__loss_tokens=loss, algo__advantage_tokens=advantage)
        estimated = estimate_of(groups, make_learner(config), config)
        assert estimated is not None
        shares.append({name: each for name, each in estimated.metrics.items() if name.endswith("_token_share")})
    count = len(SECTIONED)
    assert shares == [
        {"loss_token_share": pytest.approx(1 / count)},
        {"loss_token_share": pytest.approx(11 / count), "advantage_token_share": pytest.approx(2 / count)},
        {},
    ]


def test_token_rule_with_too_few_values_is_reported() -> None:
    with pytest.raises(UserError, match="returned 1 values for a turn of 5 sampled tokens"):
        rule_masks([trajectory_of([thoughtful(0.0)])], lambda turn: [True])


@pytest.mark.parametrize("critic", ["no critic", "head"])
def test_policy_and_value_weights_aggregate_over_their_own_tokens(critic: str) -> None:
    config = settings_of(critic, algo__loss_tokens="answer", algo__advantage_tokens="think")
    estimated = estimate_of([thinkers()], make_learner(config), config)
    assert estimated is not None
    samples = train_samples(
        estimated, {0, 1, 2}, update_settings(config.algo, config.critic, config.train, config.seed)
    )
    assert sum(float(each.weights.sum()) for each in samples) == pytest.approx(1.0)
    for each in samples:
        sampled = each.sample.mask
        assert (each.weights[sampled][:5] > 0).tolist() == [False, False, True, True, False]
        assert not each.weights[sampled][5:].any()
        assert (each.advantages[sampled] != 0).long().tolist()[2:] == [0] * (int(sampled.sum()) - 2)
        if critic == "head":
            assert each.value_weights is not None
            assert (each.value_weights[sampled][:5] > 0).tolist() == [True, True, False, False, False]


def answers(reward: float, *, well: bool) -> Turn:
    """Three sampled tokens; the last is the answer, or there is none."""
    spans = (Span(name="answer", start=2, end=3),) if well else ()
    info = {"state": "start"}
    return turn_of([3] * 9, [4, 5, 6], extends=False, reward=reward, spans=spans, info=info)


MISSED = {
    # returns 3, 1, -1: the last member has no answer, and its failure is in the mean of 1 and the std of 2
    "grpo": [1.0, 0.0],
    "dr_grpo": [2.0, 0.0],
    "rloo": [3.0, 0.0],
    "opo": [2.0, 0.0],
    "gpg": [2.0, 0.0],
    "pass_at_k": [1.0, 0.0],
    "brpo": [1.0, 0.0],
    "arpo": [3.0, 1.0],
    "turn_grpo": [1.0, 0.0],
    "gigpo": [2.0, 0.0],
    # 2, 0, -2 on three tokens each, whitened over the nine: variance 24 / 8
    "reinforce_pp_baseline": [2 / 3**0.5, 0.0],
    "clone": [1.0, 1.0],
    # the best and the worst member; the worst has no answer
    "preference": [1.0, 0.0],
}


@pytest.mark.parametrize("name", [name for name, each in ADVANTAGES.items() if not each.along_tokens])
def test_advantage_tokens_keep_members_without_an_answer_in_the_baseline(name: str) -> None:
    assert name in MISSED, f"Add {name} to MISSED in tests/training/test_masks.py."
    config = settings_of(algo__advantage=name, algo__advantage_tokens="answer", algo__kl_coef=0.0)
    members = [answers(3.0, well=True), answers(1.0, well=True), answers(-1.0, well=False)]
    estimated = estimate_of([group_of([[turn] for turn in members])], make_learner(config), config)
    assert estimated is not None
    rows = [each[-3:].tolist() for each in estimated.advantages]
    assert rows == [pytest.approx([0.0, 0.0, each], abs=1e-5) for each in (*MISSED[name], 0.0)]


def test_tokens_outside_the_loss_have_no_gradient() -> None:
    """Other sampler log-probabilities, so other ratios, on the thinking alone: only a loss that has it can notice."""

    def members(thinking: float) -> Group:
        said = [thinking, thinking, -4.0, -4.0, -4.0]
        turns = [replace(thoughtful(reward), action_logprobs=tuple(said)) for reward in (1.0, 0.0)]
        return group_of([[turn] for turn in turns])

    for tokens, noticed in (("sampled", True), ("think", True), ("answer", False)):
        config = settings_of(algo__kl_coef=0.0, algo__entropy_coef=0.0, algo__loss_tokens=tokens)
        one, other = (gradients(make_learner(config), [members(thinking)], config) for thinking in (-4.5, -5.0))
        assert any(not torch.allclose(one[name], other[name], atol=1e-6) for name in one) == noticed, tokens


def test_update_without_counted_tokens_changes_nothing() -> None:
    config = settings_of(algo__loss_tokens="think", algo__kl_coef=0.0, algo__entropy_coef=0.0)
    learner = make_learner(config)
    before = {name: each.clone() for name, each in learner.model.named_parameters()}
    learn(learner, [group_of([[silent_start(1.0)], [silent_start(0.0)]])], config)
    assert all(torch.equal(before[name], each) for name, each in learner.model.named_parameters())


def silent_start(reward: float) -> Turn:
    return turn_of([9] * 9, [10, 11], extends=False, reward=reward)


@pytest.mark.parametrize("rule", [lambda turn: None, lambda turn: 1 / 0])
def test_token_rule_that_fails_is_reported_in_one_line(rule: Any) -> None:
    with pytest.raises(UserError, match="The token rule raised"):
        rule_masks([trajectory_of([thoughtful(0.0)])], rule)
