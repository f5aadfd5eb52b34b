import pytest

from mcp_tools_for_tests import GRACE_S, QUICK_GUARD


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Call tools again after a hundredth of the usual time."""
    monkeypatch.setattr("turnwise.tools.toolbox.RETRY_DELAY_S", 0.001)


@pytest.fixture
def quick_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill MCP servers that do not exit on their own after a tenth of the usual time."""
    from turnwise.tools.mcp import transports

    monkeypatch.setattr(transports, "PROCESS_GUARD", QUICK_GUARD)
    monkeypatch.setattr(transports, "GRACE_S", GRACE_S)
