"""The judges of one run: equal settings share one client, and so one budget, one cache and one set of counters."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial

from turnwise.rewards.judge.budget import JudgeBudget, JudgeCounts
from turnwise.rewards.judge.client import AnswerCache, JudgeClient, JudgeModel
from turnwise.rewards.judge.settings import LOCAL, JudgeSettings

CountsByJudge = dict[str, dict[str, float]]
"""Counters of each judge, by a hash of its settings. Checkpoints store this."""
OnJudgeSpend = Callable[[str, int, int], None]
"""Called with the judge's hash, calls and tokens, as `budget.OnSpend`."""


class JudgeRegistry:
    def __init__(
        self,
        *,
        spent: Mapping[str, Mapping[str, float]] | None = None,
        on_spend: OnJudgeSpend = lambda *_: None,
    ) -> None:
        """`spent`: counters of a run that is resumed; `on_spend`: called before each request is sent."""
        self._on_spend = on_spend
        self._clients: dict[str, JudgeClient] = {}
        self._restored: CountsByJudge = {}
        self.restore(spent or {})

    @property
    def clients(self) -> list[JudgeClient]:
        return list(self._clients.values())

    def client(self, settings: JudgeSettings) -> JudgeClient:
        """Return the client for these settings. Raises UserError if its key or its cache is not available.

        A local model is loaded when it is first asked.
        """
        key = hashlib.blake2b(settings.model_dump_json().encode(), digest_size=8).hexdigest()
        if key not in self._clients:
            counts = JudgeCounts()
            counts.raise_to(self._restored.get(key, {}))
            budget = JudgeBudget(
                settings.max_calls, settings.max_tokens_total, counts, on_spend=partial(self._on_spend, key)
            )
            model = _build_model(settings, budget)
            self._clients[key] = JudgeClient(settings, model, AnswerCache(settings.cache), counts)
        return self._clients[key]

    def counts(self) -> CountsByJudge:
        """Return the counters of all judges, also of those that were restored and not used since."""
        return self._restored | {key: asdict(client.counts) for key, client in self._clients.items()}

    def restore(self, counts: Mapping[str, Mapping[str, float]]) -> None:
        """Continue from the counters of a checkpoint or a spending log; where two disagree, the higher one counts."""
        for key, values in counts.items():
            known = self._restored.get(key, {})
            self._restored[key] = known | {name: max(value, known.get(name, 0)) for name, value in values.items()}
            if key in self._clients:
                self._clients[key].counts.raise_to(values)

    def metrics(self) -> dict[str, float]:
        """Return the counters summed over all judges since the run began; empty if there are none."""
        rows = [client.counts.metrics() for client in self._clients.values()]
        return {name: sum(metrics[name] for metrics in rows) for name in rows[0]} if rows else {}

    async def close(self) -> None:
        """Close the connections of the running event loop. Counters stay."""
        for client in self._clients.values():
            await client.close()


def _build_model(settings: JudgeSettings, budget: JudgeBudget) -> JudgeModel:
    """Import neither torch nor the HTTP library before a judge needs it."""
    if settings.endpoint == LOCAL:
        from turnwise.rewards.judge.local import LocalJudgeModel

        return LocalJudgeModel(settings, budget)
    from turnwise.rewards.judge.endpoint import EndpointJudgeModel

    return EndpointJudgeModel(settings, budget)
