"""The judges of this process: equal settings share one budget, one cache and one set of counters."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial

from turnwise.rewards.judge.budget import JudgeBudget, JudgeCounts
from turnwise.rewards.judge.client import AnswerCache, JudgeClient, JudgeModel
from turnwise.rewards.judge.settings import LOCAL, JudgeSettings

Counted = dict[str, dict[str, float]]
"""What each judge did, by a hash of its settings: what a checkpoint keeps of it."""
Note = Callable[[str, int, int], None]
"""What the judge of this hash spends, calls and tokens, as it does."""
_benches: dict[str, JudgeClient] = {}
_before: Counted = {}
_notes: list[Note] = []


def bench_for(settings: JudgeSettings) -> JudgeClient:
    """Raises a UserError where its key or its cache cannot be had; a local model is loaded when it is first asked."""
    key = hashlib.blake2b(settings.model_dump_json().encode(), digest_size=8).hexdigest()
    if key not in _benches:
        counts = JudgeCounts()
        counts.take_up(_before.get(key, {}))
        meter = JudgeBudget(settings.max_calls, settings.max_tokens_total, counts, partial(_spend, key))
        _benches[key] = JudgeClient(settings, _complete(settings, meter), AnswerCache(settings.cache), counts)
    return _benches[key]


def _complete(settings: JudgeSettings, meter: JudgeBudget) -> JudgeModel:
    """Whoever only names rewards waits for neither torch nor an HTTP library."""
    if settings.endpoint == LOCAL:
        from turnwise.rewards.judge.local import LocalJudgeModel

        return LocalJudgeModel(settings, meter)
    from turnwise.rewards.judge.endpoint import EndpointJudgeModel

    return EndpointJudgeModel(settings, meter)


def benches() -> list[JudgeClient]:
    """Those that have been asked for since `forget_benches`."""
    return list(_benches.values())


def forget_benches() -> None:
    """A run's budget and its counters begin with it."""
    _benches.clear()
    _before.clear()


def counted() -> Counted:
    return _before | {key: asdict(bench.counts) for key, bench in _benches.items()}


def take_up(before: Mapping[str, Mapping[str, float]]) -> None:
    """A run that goes on has spent this already, whether its judges sit here yet or not."""
    for key, counts in before.items():
        known = _before.get(key, {})
        _before[key] = known | {name: max(value, known.get(name, 0)) for name, value in counts.items()}
        if key in _benches:
            _benches[key].counts.take_up(counts)


@contextmanager
def accounted(spent: Mapping[str, Mapping[str, float]], note: Note) -> Iterator[None]:
    """A run: it has `spent` this already, and `note` is told of each request before it is sent."""
    take_up(spent)
    _notes.append(note)
    try:
        yield
    finally:
        _notes.remove(note)


def _spend(key: str, calls: int, tokens: int) -> None:
    for note in _notes:
        note(key, calls, tokens)


def judge_metrics() -> dict[str, float]:
    """Of all judges together, since `forget_benches`; empty where there are none."""
    each = [bench.counts.metrics() for bench in _benches.values()]
    return {name: sum(metrics[name] for metrics in each) for name in each[0]} if each else {}
