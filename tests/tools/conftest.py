import sys
from pathlib import Path

import pytest

from turnwise.tools import process_guard

GRACE_S = 0.1
QUICK_GUARD = f"""
import sys
sys.path.insert(0, {str(Path(process_guard.__file__).parent)!r})
import process_guard
process_guard.GRACE_S = {GRACE_S}
sys.exit(process_guard.main(int(sys.argv[1]), sys.argv[2:]))
"""


@pytest.fixture
def quick_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill MCP servers that do not exit on their own after a tenth of the usual time."""
    from turnwise.tools.mcp import transports

    monkeypatch.setattr(transports, "PROCESS_GUARD", (sys.executable, "-I", "-S", "-c", QUICK_GUARD))
    monkeypatch.setattr(transports, "GRACE_S", GRACE_S)
