"""Explain why a step trained nothing, and what to change."""

from turnwise.record.steps import IdleReason, StepRecord

EQUAL_REWARDS = (
    "the members of each group had equal rewards. Use rewards that distinguish them or easier tasks, or raise "
    "rollout.group_size or rollout.temperature"
)


def _no_tokens_in(setting: str, effect: str) -> str:
    return (
        f"{setting} selects none of the sampled tokens, so {effect}. Ask for such text in the prompt, e.g. by "
        f"env.params.reasoning, or change {setting}"
    )


EXPLANATIONS = {
    IdleReason.NO_TOKENS: "all prompts fill rollout.max_tokens, so that no token was sampled. Raise rollout.max_tokens",
    IdleReason.FILTERED: "the filter kept no group. Choose another algo.filter or algo.filter.value",
    IdleReason.DROPPED: "every group that passed the filter lacks its greedy episode, which failed",
    IdleReason.TRUNCATED: "all episodes were truncated, and algo.truncated = drop leaves them out. Raise "
    "rollout.max_tokens",
    IdleReason.NO_UTTERANCES: "no episode of the step has turns that can be trained on: they were truncated, or an "
    "answer is empty. Raise rollout.max_tokens",
    IdleReason.UNTRUSTED_CRITIC: "the critic did not predict the returns, so the policy does not follow it yet",
    IdleReason.LOSS_TOKENS: _no_tokens_in("algo.loss_tokens", "no token is trained"),
    IdleReason.ADVANTAGE_TOKENS: _no_tokens_in("algo.advantage_tokens", "no token has an advantage"),
    IdleReason.DISJOINT_TOKENS: "the gradient was 0, because algo.loss_tokens and algo.advantage_tokens select "
    "different tokens, so no trained token has an advantage. Select the same tokens with both",
    IdleReason.ZERO_ADVANTAGES: f"all advantages were 0, e.g. because {EQUAL_REWARDS}",
    IdleReason.ZERO_GRADIENT: f"the gradient was 0, e.g. because {EQUAL_REWARDS}",
    IdleReason.SKIPPED: "its gradients were not finite, so its optimizer steps were skipped",
}


def explain_step(record: StepRecord) -> str | None:
    """Explain an idle step, or a token mask that selected nothing although a critic or a KL term was trained.

    None for a step that trained as usual.
    """
    if record.idle is not None:
        return f" trained nothing: {EXPLANATIONS[record.idle]}"
    for share, reason in (
        ("loss_token_share", IdleReason.LOSS_TOKENS),
        ("advantage_token_share", IdleReason.ADVANTAGE_TOKENS),
    ):
        if record.training.get(share) == 0:
            return f": {EXPLANATIONS[reason]}"
    return None


def describe_dropped(record: StepRecord) -> str:
    """Return how many episodes of a step were dropped, and the last failure."""
    dropped = int(record.rollout["dropped"])
    total = dropped + int(record.rollout.get("episodes", 0))
    return f"dropped {dropped} of {total} episodes. Last failure: {record.dropped_reason or 'unknown'}"
