"""Fixtures of the gateway's tests."""

from pathlib import Path

import pytest

from harbor_for_tests import write_task


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """Return a folder with a Harbor task in each split."""
    for name in ("train", "validation", "test"):
        write_task(
            tmp_path / "tasks" / name,
            instruction=f"Write ok into /app/out.txt. ({name})",
            settings=f'[metadata]\nsplit = "{name}"\n',
        )
    return tmp_path / "tasks"
