"""Files of any size and depth are read within bounds."""

import os
import tomllib
from pathlib import Path

import pytest

from turnwise.viewer.explanations import Explanations
from turnwise.viewer.metrics import MetricColumns
from turnwise.viewer.runs import RunList
from turnwise.viewer.settings import MAX_DEPTH, flat_settings, read_toml
from turnwise.viewer.viewed_folder import ViewedFolder


def test_settings_of_any_depth_are_listed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text(f"seed = 3\n{'.'.join(['a'] * 5000)} = 1\n")
    settings = flat_settings(ViewedFolder(tmp_path), run)
    assert settings["seed"] == 3
    assert len(settings) == 2
    assert settings[".".join([*["a"] * MAX_DEPTH, "..."])] == 1


def test_settings_read_cuts_deep_keys_before_parsing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = " . ".join(["a", '"b.c"'] * 2500)
    text = f"x = {{{deep} = 1}}\nname = '{deep.replace(chr(34), '')}'\n[{deep}]\ny = 2\n"
    (tmp_path / "config.toml").write_text(text)
    parsed: list[str] = []
    monkeypatch.setattr(tomllib, "loads", lambda given, loads=tomllib.loads: parsed.append(given) or loads(given))
    settings = read_toml(ViewedFolder(tmp_path), tmp_path, "config.toml")
    assert settings["name"] == deep.replace('"', "")
    assert max(line.count("a") for line in parsed[0].splitlines() if not line.startswith("name")) == MAX_DEPTH / 2


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("{root}/sweep/one/checkpoints/best", "sweep/one/checkpoints/best"),
        ("/elsewhere/runs/one/checkpoints/best", "one/checkpoints/best"),
        ("/elsewhere/coin.py:Coin", "coin.py:Coin"),
        ("Qwen/Qwen3-4B", "Qwen/Qwen3-4B"),
        ("/", "/"),
    ],
)
def test_run_list_shows_no_absolute_path(tmp_path: Path, path: str, shown: str) -> None:
    value = path.format(root=tmp_path.resolve())
    run, evaluation = tmp_path / "run", tmp_path / "evaluation"
    run.mkdir()
    evaluation.mkdir()
    (run / "config.toml").write_text(f'[env]\nkind = "{value}"\n[model]\nname = "{value}"\n')
    plan = f'environment = "{value}"\nmodels = [{{ name = "m", label = "{value}" }}]\n'
    (evaluation / "evaluation.toml").write_text(plan)
    for row in RunList(ViewedFolder(tmp_path)).rows():
        assert (row["environment"], row["model"]) == (shown, shown)


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


def test_run_with_a_sparse_metrics_file_is_explained(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").write_text('{"step": 1, "rollout/reward": 0.5}\n')
    os.truncate(run / "metrics.jsonl", 1 << 40)
    assert isinstance(Explanations(ViewedFolder(tmp_path)).explain(run), list)
