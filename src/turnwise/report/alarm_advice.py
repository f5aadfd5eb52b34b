"""Advice about the alarms of a run."""

ALARM_ADVICE = {
    "echo trap": "The agent repeats itself: stop at the checkpoint before the alarm, raise rollout.temperature or "
    "algo.entropy_coef, or let diagnose.answer roll_back return to it.",
    "reward hacking": "The reward rises without success: look at the episodes with the highest reward, and close the "
    "loophole or lower the weight of that reward.",
    "nothing to learn from": "Members of a group always fare alike: use easier tasks or rewards that distinguish them, "
    "or raise rollout.temperature or rollout.group_size.",
    "are invalid": "The environment cannot read the replies: raise rollout.max_new_tokens if they are cut, else set "
    "rollout.prefix or begin with `turnwise sft`.",
    "no longer explores": "Set algo.action_entropy_target, or raise algo.entropy_coef or "
    "rollout.temperature, or lower train.learning_rate.",
    "a spike": "Lower train.learning_rate or train.max_grad_norm.",
    "not finite": "Lower train.learning_rate; if it happens again, set model.dtype float32.",
    "without more success": "Answers only get longer: lower rollout.max_new_tokens, or add a reward for short answers.",
    "template collapse": "The reasoning no longer depends on the task: raise algo.kl_coef, or use more varied tasks.",
}
"""Part of an alarm's text -> what to do."""


def advise(alarm: str) -> str | None:
    """Return what to do about an alarm; None for a text that no rule knows."""
    return next((advice for part, advice in ALARM_ADVICE.items() if part in alarm), None)
