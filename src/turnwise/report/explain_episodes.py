"""Rules of `explain.py` over episodes: what the agent does now that it did not before, and which tasks it fails."""

from collections import Counter
from collections.abc import Iterator, Mapping

from turnwise.record.rows import AFTER, BEFORE
from turnwise.report.episodes import STATUS_WORDS
from turnwise.report.formatting import format_percent
from turnwise.report.run_facts import Behaviour, RunFacts
from turnwise.report.sentences import Sentence

LEAST_CHANGE = 0.1
"""Change of a share of actions or turns that is worth a sentence."""
LEAST_FACTOR = 1.25
"""Change of a length that is worth a sentence."""
INVALID = 0.2
"""Share of turns with invalid actions from which advice is due."""
LEAST_ACTIONS = 30
"""Actions on each side before their shares are compared."""


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
