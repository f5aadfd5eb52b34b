"""Files of any size and depth are read within bounds."""

import os
from pathlib import Path

from turnwise.viewer.metrics import MetricColumns
from turnwise.viewer.settings import MAX_DEPTH, flat_settings
from turnwise.viewer.viewed_folder import ViewedFolder


def test_settings_of_any_depth_are_listed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text(f"seed = 3\n{'.'.join(['a'] * 5000)} = 1\n")
    settings = flat_settings(ViewedFolder(tmp_path), run)
    assert settings["seed"] == 3
    assert settings[".".join(["a"] * (MAX_DEPTH + 1))] == "..."


def test_sparse_metrics_file_is_read_in_bounded_pieces(tmp_path: Path) -> None:
    run, size = tmp_path / "run", 1 << 40
    run.mkdir()
    (run / "config.toml").write_text("")
    (run / "metrics.jsonl").write_text('{"step": 1, "rollout/reward": 0.5}\n')
    os.truncate(run / "metrics.jsonl", size)
    columns = MetricColumns(ViewedFolder(tmp_path), run)
    columns.refresh()
    assert columns.names() == ["rollout/reward", "step"]
    assert 0 < columns.since(0, None, None)["rows"] < 3
