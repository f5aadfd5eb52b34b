"""Explain a run in words: what happened, what the agent does now, what it still fails, why it stopped learning, and
what to try.

Each sentence comes from one rule over the facts (`run_facts.py`) and has the numbers that it was made from. A rule
without enough evidence says nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from turnwise.record.rows import AFTER, BEFORE, EvaluationRecord
from turnwise.record.steps import StepRecord, finite_number
from turnwise.report.alarm_advice import ALARM_ADVICE
from turnwise.report.episodes import STATUS_WORDS
from turnwise.report.formatting import format_percent
from turnwise.report.progress import EXPLANATIONS
from turnwise.report.run_facts import Behaviour, RunFacts

Topic = Literal["success", "behaviour", "failures", "learning", "advice"]
TITLES: Mapping[Topic, str] = {
    "success": "What happened",
    "behaviour": "What the agent does now",
    "failures": "What it still fails",
    "learning": "What limits learning",
    "advice": "What to try",
}

WINDOW = 5
"""Steps per mean: single steps vary."""
MIN_STEPS = 2 * WINDOW
LEAST_GAIN = 0.05
"""Change of success that counts as a change."""
LEAST_CHANGE = 0.1
"""Change of a share of actions or turns that is worth a sentence."""
LEAST_FACTOR = 1.25
"""Change of a length that is worth a sentence."""
LEAST_ACTIONS = 30
"""Actions on each side before their shares are compared."""
FLAT_GROUPS = 0.7
"""Share of groups without spread from which they limit learning."""
SOLVED = 0.9
LENGTH_STOPS = 0.1
INVALID = 0.2
DROPPED = 0.05
ENTROPY_SHARE = 0.2
IDLE = 0.2
OVERFIT = 0.15
"""Success in training above that in the evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    topic: Topic
    text: str


Rule = Callable[[RunFacts], Iterator[Sentence]]


def explain(facts: RunFacts) -> list[Sentence]:
    """Return the sentences of all rules, by topic."""
    sentences = [sentence for rule in RULES for sentence in rule(facts)]
    return sorted(sentences, key=lambda sentence: list(TITLES).index(sentence.topic))


def by_title(sentences: Sequence[Sentence]) -> list[tuple[str, list[str]]]:
    """Return the texts under the titles of their topics."""
    sections = [
        (title, [sentence.text for sentence in sentences if sentence.topic == topic]) for topic, title in TITLES.items()
    ]
    return [(title, texts) for title, texts in sections if texts]


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


def actions_changed(facts: RunFacts) -> Iterator[Sentence]:
    """Name the actions, or tools, whose share changed most."""
    if facts.behaviours is None:
        return
    before, after = facts.behaviours
    for what, one, other in (("actions", before.actions, after.actions), ("tool calls", before.tools, after.tools)):
        if sum(one.values()) < LEAST_ACTIONS or sum(other.values()) < LEAST_ACTIONS or len({*one, *other}) > 50:
            continue
        shares = {name: (_share(one, name), _share(other, name)) for name in sorted({*one, *other})}
        name = max(shares, key=lambda candidate: abs(shares[candidate][1] - shares[candidate][0]))
        first, second = shares[name]
        if abs(second - first) >= LEAST_CHANGE:
            yield Sentence(
                topic="behaviour",
                text=f'"{name}" is {format_percent(second)} of its {what} {facts.sides[1]}, and was '
                f"{format_percent(first)} {facts.sides[0]}.",
            )


def tool_use_changed(facts: RunFacts) -> Iterator[Sentence]:
    if facts.behaviours is None:
        return
    before, after = facts.behaviours
    calls = [sum(side.tools.values()) for side in (before, after)]
    if not any(calls):
        return
    per_episode = [count / max(side.episodes, 1) for count, side in zip(calls, (before, after), strict=True)]
    if _differ(*per_episode):
        yield Sentence(
            topic="behaviour",
            text=f"It makes {per_episode[1]:.1f} tool calls per episode {facts.sides[1]}; {facts.sides[0]} it made "
            f"{per_episode[0]:.1f}.",
        )
    failed = [side.failed_calls / count if count else None for count, side in zip(calls, (before, after), strict=True)]
    if failed[1] is not None and (failed[0] is None or abs(failed[1] - failed[0]) >= LEAST_CHANGE):
        earlier = "" if failed[0] is None else f", and {format_percent(failed[0])} did {facts.sides[0]}"
        yield Sentence(topic="behaviour", text=f"{format_percent(failed[1])} of its calls fail{earlier}.")


def lengths_changed(facts: RunFacts) -> Iterator[Sentence]:
    if facts.behaviours is None:
        return
    sides = facts.behaviours
    turns = [side.turns / side.episodes for side in sides if side.episodes]
    tokens = [side.tokens / side.turns for side in sides if side.turns]
    if len(turns) == 2 and _differ(*turns):
        yield Sentence(
            topic="behaviour",
            text=f"Its episodes have {turns[1]:.1f} turns {facts.sides[1]}, and had {turns[0]:.1f} {facts.sides[0]}.",
        )
    if len(tokens) == 2 and _differ(*tokens):
        yield Sentence(
            topic="behaviour",
            text=f"Its answers have {tokens[1]:.0f} tokens {facts.sides[1]}, and had {tokens[0]:.0f} {facts.sides[0]}.",
        )


def invalid_actions_changed(facts: RunFacts) -> Iterator[Sentence]:
    if facts.behaviours is None:
        return
    before, after = (_invalid_share(side) for side in facts.behaviours)
    if before is None or after is None:
        return
    if abs(after - before) >= LEAST_CHANGE:
        yield Sentence(
            topic="behaviour",
            text=f"{format_percent(after)} of its turns are invalid {facts.sides[1]}, and {format_percent(before)} "
            f"were {facts.sides[0]}.",
        )
    if after >= INVALID:
        yield Sentence(
            topic="advice",
            text=f"{format_percent(after)} of the turns have no valid action: fine-tune on demonstrations first "
            "(turnwise sft), or show an example in the prompt (env.params.examples true).",
        )


def tasks_changed(facts: RunFacts) -> Iterator[Sentence]:
    """Count the tasks that training gained and lost, from the same tasks before and after."""
    before, after = facts.outcomes.get(BEFORE, {}), facts.outcomes.get(AFTER, {})
    shared = before.keys() & after.keys()
    if not shared:
        return
    gained = sum(not _solved(before[task]) and _solved(after[task]) for task in shared)
    lost = sum(_solved(before[task]) and not _solved(after[task]) for task in shared)
    if gained or lost:
        yield Sentence(
            topic="success",
            text=f"Of {len(shared)} tasks, {gained} are solved now that were not before, and {lost} no longer are.",
        )


def tasks_still_failed(facts: RunFacts) -> Iterator[Sentence]:
    """Say how the failed tasks end, and which environment has most of them."""
    after = facts.outcomes.get(AFTER, {})
    failed = {task: status for task, status in after.items() if not _solved(status)}
    if not failed:
        return
    status, count = Counter(failed.values()).most_common(1)[0]
    how = "failed by the rules" if status == "failed" else STATUS_WORDS.get(status, status.replace("_", " "))
    yield Sentence(
        topic="failures",
        text=f"{len(failed)} of {len(after)} tasks fail after training; {count} of them: {how}.",
    )
    environments = Counter(environment for environment, _ in after)
    if len(environments) > 1:
        rates = {
            name: sum(environment == name for environment, _ in failed) / total for name, total in environments.items()
        }
        worst = max(rates, key=lambda name: rates[name])
        yield Sentence(topic="failures", text=f"{worst} fails most often: {format_percent(rates[worst])} of its tasks.")
    if status == "truncated_turns" and count > len(failed) / 2:
        yield Sentence(
            topic="advice",
            text="Most failed tasks run out of turns: raise env.params.max_turns if the task allows it, or reward "
            "progress on the way.",
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


def _solved(status: str) -> bool:
    return status == "succeeded"


def _share(counts: Mapping[str, int], name: str) -> float:
    return counts.get(name, 0) / sum(counts.values())


def _invalid_share(side: Behaviour) -> float | None:
    return side.invalid / side.turns if side.turns else None


def _differ(one: float, other: float) -> bool:
    """Return whether one number is larger by LEAST_FACTOR."""
    low, high = sorted((one, other))
    return high > 0 and high >= LEAST_FACTOR * low
