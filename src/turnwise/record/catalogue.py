"""Every metric of `metrics.jsonl`: what it means, its unit, and where it is shown. `docs/metrics.md` is made from it.

They are declared in `metrics.toml`. A name in capitals stands for many: `reward/NAME`, `eval/success/ENV`. Imports no
torch.
"""

import re
from dataclasses import dataclass
from typing import Literal

from pydantic import TypeAdapter

from turnwise.files.package_data import load_toml

Unit = Literal["", "share", "count", "mean", "tokens", "nats", "s", "1/s", "MB", "Wh", "Elo", "text"]
"""share: from 0 to 1, shown in percent. mean: of a small number, such as turns."""
Place = Literal["report", "watch", "viewer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    name: str
    meaning: str
    unit: Unit = ""
    label: str = ""
    """Title of its chart."""
    places: tuple[Place, ...] = ()
    """Chart that shows it; the viewer lists all others below."""
    line: tuple[str, int] | None = None
    """Label and width in the progress line."""
    replaced_by: str | None = None
    """Metric that is shown in its place if a run has both."""
    evaluations: tuple[str, str, str] | None = None
    """Metrics of evaluations that are drawn with it: a point and the ends of its interval."""
    from_0_to_1: bool = False
    """Always drawn on that range, so that charts can be compared."""

    @property
    def pattern(self) -> str:
        """Regular expression of its names."""
        return re.sub(r"[A-Z]+", "[^/]+", self.name)


def _load_metrics() -> tuple[tuple[Metric, ...], tuple[Metric, ...]]:
    tables, parse = load_toml("turnwise.record", "metrics.toml"), TypeAdapter(tuple[Metric, ...]).validate_python
    shown = parse([{"name": name, **fields} for name, fields in tables["shown"].items()])
    others = [
        {"name": f"{family}/{name}", **fields}
        for family, metrics in tables["other"].items()
        for name, fields in metrics.items()
    ]
    return shown, (*shown, *parse(others))


SHOWN, METRICS = _load_metrics()
"""Metrics with a chart or a column in the progress line, in the order shown; and all metrics."""
