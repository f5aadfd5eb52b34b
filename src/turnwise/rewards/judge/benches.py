"""The judges of this process: equal settings share one budget, one cache and one set of counters."""

from turnwise.rewards.judge.bench import Bench
from turnwise.rewards.judge.budget import Meter
from turnwise.rewards.judge.cache import AnswerCache
from turnwise.rewards.judge.complete import Complete
from turnwise.rewards.judge.counts import JudgeCounts
from turnwise.rewards.judge.settings import LOCAL, JudgeSettings

_benches: dict[str, Bench] = {}


def bench_for(settings: JudgeSettings) -> Bench:
    """Raises a UserError where its key or its cache cannot be had; a local model is loaded when it is first asked."""
    key = settings.model_dump_json()
    if key not in _benches:
        counts = JudgeCounts()
        meter = Meter(settings.max_calls, settings.max_tokens_total, counts)
        _benches[key] = Bench(settings, _complete(settings, meter), AnswerCache(settings.cache), counts)
    return _benches[key]


def _complete(settings: JudgeSettings, meter: Meter) -> Complete:
    """Whoever only names rewards waits for neither torch nor an HTTP library."""
    if settings.endpoint == LOCAL:
        from turnwise.rewards.judge.local import LocalComplete

        return LocalComplete(settings, meter)
    from turnwise.rewards.judge.endpoint import EndpointComplete

    return EndpointComplete(settings, meter)


def forget_benches() -> None:
    """A run's budget and its counters begin with it."""
    _benches.clear()


def judge_metrics() -> dict[str, float]:
    """Of all judges together, since `forget_benches`; empty where there are none."""
    each = [bench.counts.metrics() for bench in _benches.values()]
    return {name: sum(metrics[name] for metrics in each) for name in each[0]} if each else {}
