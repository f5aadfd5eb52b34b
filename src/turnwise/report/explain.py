"""Explain a run in words: what happened, what the agent does now, what it still fails, why it stopped learning, and
what to try.

Each sentence comes from one rule over the facts (`run_facts.py`) and has the numbers that it was made from. A rule
without enough evidence says nothing.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from turnwise.record.rows import AFTER, BEFORE, EvaluationRecord
from turnwise.record.steps import StepRecord, finite_number
from turnwise.report.alarm_advice import ALARM_ADVICE
from turnwise.report.explain_episodes import (
    actions_changed,
    invalid_actions_changed,
    lengths_changed,
    tasks_changed,
    tasks_still_failed,
    tool_use_changed,
)
from turnwise.report.formatting import format_percent
from turnwise.report.progress import EXPLANATIONS
from turnwise.report.run_facts import RunFacts
from turnwise.report.sentences import TITLES, Rule, Sentence

WINDOW = 5
"""Steps per mean: single steps vary."""
MIN_STEPS = 2 * WINDOW
LEAST_GAIN = 0.05
"""Change of success that counts as a change."""
FLAT_GROUPS = 0.7
"""Share of groups without spread from which they limit learning."""
SOLVED = 0.9
LENGTH_STOPS = 0.1
DROPPED = 0.05
ENTROPY_SHARE = 0.2
IDLE = 0.2
OVERFIT = 0.15
"""Success in training above that in the evaluation."""


def explain(facts: RunFacts) -> list[Sentence]:
    """Return the sentences of all rules, by topic."""
    sentences = [sentence for rule in RULES for sentence in rule(facts)]
    return sorted(sentences, key=lambda sentence: list(TITLES).index(sentence.topic))


def success_changed(facts: RunFacts) -> Iterator[Sentence]:
    """Compare the evaluations before and after training by their intervals."""
    before, after = (_evaluated(facts.evaluations.get(name)) for name in (BEFORE, AFTER))
    if before is None or after is None:
        return
    (start, start_low, start_high), (end, end_low, end_high) = before, after
    interval = f"95 % interval {format_percent(end_low).removesuffix(' %')} to {format_percent(end_high)}"
    if start_high < end_low or end_high < start_low:
        verb = "rose" if end > start else "fell"
        text = f"Success {verb} from {format_percent(start)} before training to {format_percent(end)} after it"
    else:
        text = (
            f"Success did not change measurably: {format_percent(start)} before training, {format_percent(end)} after"
        )
    yield Sentence(topic="success", text=f"{text} ({interval}).")


def success_rose_when(facts: RunFacts) -> Iterator[Sentence]:
    """Name the steps by which half and nine tenths of the rise in training were reached."""
    curve = _smooth(facts.steps, "rollout/success")
    if len(curve) < MIN_STEPS:
        return
    start, highest = curve[0][1], max(value for _, value in curve)
    if highest - start < LEAST_GAIN:
        return
    half, most = (_first_step(curve, start + share * (highest - start)) for share in (0.5, 0.9))
    yield Sentence(
        topic="success",
        text=f"In training, half of the rise from {format_percent(start)} to {format_percent(highest)} came by step "
        f"{half}, and nine tenths by step {most} of {curve[-1][0]}.",
    )


def success_fell_again(facts: RunFacts) -> Iterator[Sentence]:
    curve = _smooth(facts.steps, "rollout/success")
    if len(curve) < MIN_STEPS:
        return
    step, highest = max(curve, key=lambda point: point[1])
    if highest - curve[-1][1] >= 2 * LEAST_GAIN:
        yield Sentence(
            topic="learning",
            text=f"Success in training fell from {format_percent(highest)} at step {step} to "
            f"{format_percent(curve[-1][1])} at the end.",
        )
        yield Sentence(
            topic="advice",
            text="Evaluate the best checkpoint (set eval.every to keep it), and lower train.learning_rate or raise "
            "algo.kl_coef so that later steps do not undo it.",
        )


def equal_rewards(facts: RunFacts) -> Iterator[Sentence]:
    """Groups whose members all get the same reward teach nothing."""
    flat, success = (_last(facts.steps, name) for name in ("rollout/zero_std_groups", "rollout/success"))
    if flat is None or flat < FLAT_GROUPS or len(facts.steps) < MIN_STEPS:
        return
    yield Sentence(
        topic="learning",
        text=f"In {format_percent(flat)} of the groups of the last {WINDOW} steps all episodes got the same reward, so "
        "there was nothing to learn from them.",
    )
    if success is not None and success >= SOLVED:
        advice = "The training tasks are solved: make them harder (env.params), or stop here."
    elif success is not None and success <= 1 - SOLVED:
        advice = (
            "The tasks are too hard to be solved by chance: start from easier ones, fine-tune on demonstrations "
            "(turnwise sft), or raise rollout.group_size."
        )
    else:
        advice = (
            "Draw the tasks that are solved sometimes (curriculum.pool 256), or raise rollout.group_size or "
            "rollout.temperature."
        )
    yield Sentence(topic="advice", text=advice)


def entropy_fell(facts: RunFacts) -> Iterator[Sentence]:
    start, end = _first(facts.steps, "train/entropy"), _last(facts.steps, "train/entropy")
    success = _last(facts.steps, "rollout/success")
    if start is None or end is None or start <= 0 or end / start > ENTROPY_SHARE or len(facts.steps) < MIN_STEPS:
        return
    if success is not None and success >= SOLVED:
        return
    yield Sentence(
        topic="learning",
        text=f"Entropy fell to {format_percent(end / start)} of its start ({start:.3g} to {end:.3g} nats): the agent "
        "hardly explores any more.",
    )
    yield Sentence(
        topic="advice",
        text="Keep exploring: raise algo.entropy_coef or rollout.temperature, or lower train.learning_rate.",
    )


def cut_answers(facts: RunFacts) -> Iterator[Sentence]:
    share = _last(facts.steps, "rollout/length_stops")
    if share is not None and share >= LENGTH_STOPS:
        yield Sentence(
            topic="learning", text=f"{format_percent(share)} of the turns are cut at rollout.max_new_tokens."
        )
        yield Sentence(topic="advice", text="Raise rollout.max_new_tokens, so that answers can end.")


def idle_steps(facts: RunFacts) -> Iterator[Sentence]:
    idle = Counter(record.idle for record in facts.steps if record.idle is not None)
    count = sum(idle.values())
    if facts.steps and count / len(facts.steps) >= IDLE:
        reason, number = idle.most_common(1)[0]
        yield Sentence(
            topic="learning",
            text=f"{count} of {len(facts.steps)} steps trained nothing. In {number} of them {EXPLANATIONS[reason]}.",
        )


def dropped_episodes(facts: RunFacts) -> Iterator[Sentence]:
    dropped = sum(record.rollout.get("dropped", 0.0) for record in facts.steps)
    played = sum(record.played("episodes") for record in facts.steps)
    if dropped and dropped / (dropped + played) >= DROPPED:
        reason = next((record.dropped_reason for record in reversed(facts.steps) if record.dropped_reason), "unknown")
        yield Sentence(
            topic="learning",
            text=f"{format_percent(dropped / (dropped + played))} of the episodes were dropped because their "
            f"environment or engine failed; the last failure: {reason[:200]}",
        )


def still_rising(facts: RunFacts) -> Iterator[Sentence]:
    """A run that ended while its success rose."""
    curve = _smooth(facts.steps, "rollout/success")
    if not facts.finished or len(curve) < 4 * WINDOW:
        return
    quarter = curve[-len(curve) // 4]
    rise = curve[-1][1] - quarter[1]
    if rise >= LEAST_GAIN and curve[-1][1] < SOLVED:
        yield Sentence(
            topic="advice",
            text=f"Success still rose at the end, by {100 * rise:.1f} points since step {quarter[0]}: train longer "
            "(fork the run with --from RUN --model.name RUN).",
        )


def training_beats_evaluation(facts: RunFacts) -> Iterator[Sentence]:
    evaluated, trained = _evaluated(facts.evaluations.get(AFTER)), _last(facts.steps, "rollout/success")
    if evaluated is None or trained is None or trained - evaluated[0] < OVERFIT:
        return
    yield Sentence(
        topic="learning",
        text=f"Success is {format_percent(trained)} on the training tasks of the last steps and "
        f"{format_percent(evaluated[0])} in the evaluation.",
    )
    yield Sentence(
        topic="advice", text="Train on more and more varied tasks: those of the evaluation are not like them."
    )


def alarms_raised(facts: RunFacts) -> Iterator[Sentence]:
    """Say what to do about each kind of alarm, with the step that raised it first."""
    for part, advice in ALARM_ADVICE.items():
        steps = [step for step, text in facts.alarms if part in text]
        if steps:
            times = "" if len(steps) == 1 else f", the first of {len(steps)}"
            yield Sentence(topic="advice", text=f"After the alarm of step {steps[0]}{times} ({part}): {advice}")


RULES: Sequence[Rule] = (
    alarms_raised,
    success_changed,
    tasks_changed,
    success_rose_when,
    actions_changed,
    tool_use_changed,
    lengths_changed,
    invalid_actions_changed,
    tasks_still_failed,
    success_fell_again,
    equal_rewards,
    entropy_fell,
    cut_answers,
    idle_steps,
    dropped_episodes,
    training_beats_evaluation,
    still_rising,
)


def _evaluated(record: EvaluationRecord | None) -> tuple[float, float, float] | None:
    """Return success with its interval; None if the evaluation lacks one of them."""
    if record is None or record.success is None:
        return None
    low, high = record.interval
    return None if low is None or high is None else (record.success, low, high)


def _values(steps: Sequence[StepRecord], name: str) -> list[tuple[int, float]]:
    pairs = ((record.step, finite_number(record.get(name))) for record in steps)
    return [(step, value) for step, value in pairs if value is not None]


def _smooth(steps: Sequence[StepRecord], name: str) -> list[tuple[int, float]]:
    """Return means over WINDOW steps, each at its last step."""
    points = _values(steps, name)
    return [
        (points[end - 1][0], sum(value for _, value in points[end - WINDOW : end]) / WINDOW)
        for end in range(WINDOW, len(points) + 1)
    ]


def _first(steps: Sequence[StepRecord], name: str) -> float | None:
    curve = _smooth(steps, name)
    return curve[0][1] if curve else None


def _last(steps: Sequence[StepRecord], name: str) -> float | None:
    curve = _smooth(steps, name)
    return curve[-1][1] if curve else None


def _first_step(curve: Sequence[tuple[int, float]], level: float) -> int:
    return next(step for step, value in curve if value >= level)
