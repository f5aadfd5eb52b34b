"""The benchmark of the gateway in a small form."""

import asyncio
import sys

import pytest

from pages_for_tests import ROOT


def test_load_benchmark_answers_long_and_short_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import gateway_load

    rows = asyncio.run(gateway_load.measure_long(scale=0.02))
    assert [row[0] for row in rows] == ["20 messages", "10 messages", "4 tool results", "4 messages of 8 KB"]
    assert all(int(row[3]) >= 1 for row in rows)
    monkeypatch.delitem(sys.modules, "gateway_load")
