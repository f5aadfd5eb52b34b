"""What the list of runs says of a run's settings and of an evaluation's results."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnwise.viewer.progress import finite
from turnwise.viewer.settings import dig


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Of a run's `config.toml`; None for what it does not say."""

    environment: str | None = None
    model: str | None = None
    algorithm: str | None = None
    steps: int | None = None
    imitates: bool = False
    broken: int = 0
    """1 where the file cannot be read: the run is listed all the same."""


def run_facts(config: Mapping[str, Any]) -> RunFacts:
    """The environments are all that are mixed; the algorithm is the published method, where one was named."""
    mix, steps = dig(config, "env", "mix"), dig(config, "train", "steps")
    names = [text_or_none(dig(config, "env", "kind")), *(mix if isinstance(mix, dict) else ())]
    method, advantage = dig(config, "algo", "preset"), dig(config, "algo", "advantage")
    return RunFacts(
        environment=" + ".join(name for name in names if name) or None,
        model=text_or_none(dig(config, "model", "name")),
        algorithm=text_or_none(method) or text_or_none(advantage),
        steps=steps if isinstance(steps, int) else None,
        imitates=dig(config, "sft", "demos") is not None,
    )


def evaluation_facts(plan: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, Any]:
    """Success is the first model's; steps are episodes. What only the summary knows comes once all was played."""
    models = [each for each in listed(summary, "models") or listed(plan, "models") if isinstance(each, dict)]
    first = models[0] if models else {}
    played = [each["episodes"] for each in models if isinstance(each.get("episodes"), int)]
    tokens = [each["episodes"] * each["sampled_tokens"] for each in models if counted(each)]
    tasks, tries = summary.get("tasks"), summary.get("tries")
    return {
        "environment": text_or_none(plan.get("environment")),
        "model": text_or_none(first.get("label")),
        "algorithm": None,
        "step": sum(played) if played else None,
        "steps": tasks * tries * len(models) if isinstance(tasks, int) and isinstance(tries, int) else None,
        **{name: number_or_none(first.get(name)) for name in ("success", "success_low", "success_high")},
        "wall_s": None,
        "tokens": round(sum(tokens)) if tokens else None,
        "models": [text_or_none(each.get("label")) for each in models],
    }


def progress_facts(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a finished run's metrics add up to, from its summary; None where that does not say all of it."""
    interval = summary.get("interval")
    low, high = interval if isinstance(interval, list) and len(interval) == 2 else (None, None)
    found = {
        "step": summary.get("steps"),
        "success": summary.get("success_after"),
        "success_low": low,
        "success_high": high,
        "wall_s": summary.get("wall_s"),
        "tokens": summary.get("tokens", summary.get("answer_tokens")),
    }
    if any(finite(value) is None for value in found.values()) or not isinstance(found["step"], int):
        return None
    return {**found, "broken": 0, "imitates": "answer_tokens" in summary}


def counted(model: Mapping[str, Any]) -> bool:
    return isinstance(model.get("episodes"), int) and isinstance(model.get("sampled_tokens"), float)


def listed(table: Mapping[str, Any], name: str) -> list[Any]:
    value = table.get(name)
    return value if isinstance(value, list) else []


def text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


def number_or_none(value: object) -> float | None:
    return value if isinstance(value, int | float) else None
