"""Datasets that Minari itself wrote, in both of its storage formats, as sources of stored episodes."""

from pathlib import Path
from typing import Any

import pytest

from turnwise.core.errors import UserError
from turnwise.core.trajectory import Status
from turnwise.data.episodes import parse_episode
from turnwise.data.settings import DataConfig
from turnwise.run.stored_sources import open_source

gymnasium, minari = pytest.importorskip("gymnasium"), pytest.importorskip("minari")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # Minari asks for the environment of a dataset
FILES = {"hdf5": "main_data.hdf5", "arrow": "1/part-0.arrow"}
"""File of the second episode in each format."""


@pytest.fixture
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return tmp_path


def write_dataset(datasets: Path, data_format: str, observation_space: Any, observations: list[list[Any]]) -> Path:
    """Write episodes of two steps: the first terminates, the second is truncated, the third is both."""
    buffers = [
        minari.data_collector.EpisodeBuffer(
            observations=each,
            actions=["left", "right"],
            rewards=[0.5, float(number)],
            terminations=[False, number != 1],
            truncations=[False, number != 0],
        )
        for number, each in enumerate(observations)
    ]
    minari.create_dataset_from_buffers(
        "talks-v0",
        buffers,
        observation_space=observation_space,
        action_space=gymnasium.spaces.Text(max_length=20),
        data_format=data_format,
        algorithm_name="none",
        author="none",
        author_email="none",
        code_permalink="none",
        description="none",
    )
    return datasets / "talks-v0"


@pytest.mark.parametrize("data_format", FILES)
def test_minari_episodes_are_rows_of_steps(datasets: Path, data_format: str) -> None:
    pytest.importorskip({"hdf5": "h5py", "arrow": "pyarrow"}[data_format])
    seen = [["Where?", "And now?", "The end."], ["Hello.", "Go on.", "Stop."], ["Hello.", "Go on.", "Stop."]]
    folder = write_dataset(datasets, data_format, gymnasium.spaces.Text(max_length=20), seen)
    rows = list(open_source(folder, DataConfig()).rows)
    assert [where for where, _ in rows] == [f"{folder} episode {number}" for number in range(3)]
    found = [parse_episode(row, where, Path()) for where, row in rows]
    assert [each.turn_rewards for each in found] == [(0.5, 0.0), (0.5, 1.0), (0.5, 2.0)]
    assert [each.status for each in found] == [Status.FAILED, Status.TRUNCATED_LIMIT, Status.SUCCEEDED]
    turns = [[(turn.messages[-1].content, turn.answer) for turn in each.exchanges] for each in found]
    assert turns[:2] == [[("Where?", "left"), ("And now?", "right")], [("Hello.", "left"), ("Go on.", "right")]]
    damaged = folder / "data" / FILES[data_format]
    damaged.write_bytes(damaged.read_bytes()[:100])
    with pytest.raises(UserError, match=r"talks-v0 is damaged \(.*\)\. Restore it\.") as error:
        list(open_source(folder, DataConfig()).rows)
    assert "\n" not in str(error.value)


def test_minari_numbers_are_refused_by_episode(datasets: Path) -> None:
    pytest.importorskip("h5py")
    space = gymnasium.spaces.Box(0, 1, shape=(2,))
    folder = write_dataset(datasets, "hdf5", space, [[space.sample() for _ in range(3)]])
    ((where, row),) = open_source(folder, DataConfig()).rows
    with pytest.raises(UserError, match=r"talks-v0 episode 0: observations has a list\. Write texts"):
        parse_episode(row, where, Path())
