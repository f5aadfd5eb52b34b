"""Find and open the sources of stored episodes, and check their first rows. Imports no torch.

runs/OLD          the episodes that the run recorded: exact ids and log-probabilities
runs/OLD/labels.jsonl  the episodes that were labelled good (reward 1) or bad (reward -1)
demos.jsonl       rows of text (`data/episodes.py`), or rows of trajectories as a run records them
FOLDER            a dataset: .jsonl, .parquet or .arrow files, such as `turnwise data export` or `datasets` writes
NAME-v0           a Minari dataset with text or discrete spaces, read with the `minari` package
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from turnwise.config.load import build, read_run
from turnwise.config.schema import Config
from turnwise.core.errors import UserError, read_failure
from turnwise.core.trajectory import Sampler, Trajectory
from turnwise.data.episodes import parse_episode
from turnwise.data.settings import DataConfig
from turnwise.files.run_folders import CONFIG_FILE
from turnwise.files.table_files import READERS, is_table_file, read_jsonl_rows
from turnwise.record.labelled_episodes import read_labelled
from turnwise.record.labels import Label, labelled_run
from turnwise.record.run_folder import REPLAY_FOLDER
from turnwise.record.trajectories import trajectory_from_row
from turnwise.run.dataset_rows import from_dataset_row
from turnwise.run.find_source import find_data
from turnwise.text.truncation import first_line

FILLED = "sources.json"
"""File of a replay folder that names its sources, written when all of them are in the buffer."""
TOKENS_FILE = "tokens.jsonl"
DATASET_FILES = (".jsonl", ".parquet", ".arrow")
FIRST_ROWS = 100
"""Rows of a source that are checked before anything is loaded."""
PATTERNS = {"training": ("step_*.jsonl",), "evaluation": ("eval_*.jsonl",), "all": ("step_*.jsonl", "eval_*.jsonl")}

Rows = Iterator[tuple[str, Any]]
"""(file and line of the row; its value)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    rows: Rows
    tokens: Path
    """File that names the token ids of the rows."""
    folder: Path
    """Folder of the rows, in which paths of images begin."""


def check_data(config: Config, run: Path | None = None) -> None:
    """Check before anything is loaded that the sources exist and start with episodes.

    `run`: one that is resumed; it needs no sources if it has read all of them.
    """
    if run is not None and (run / REPLAY_FOLDER / FILLED).is_file():
        return
    for name in config.data.sources:
        source, count = open_source(path := find_data(name), config.data), 0
        with source_errors(path):
            for where, row in islice(source.rows, FIRST_ROWS):
                check_has_reward(_is_scored(row, where, source.folder), where, config)
                count += 1
        if not count:
            raise UserError(f"data.sources: {path} has no episodes. Add some, or remove it.")


def read_recorded(source: str, episodes: Literal["training", "evaluation", "all"]) -> Rows:
    """Read the recorded episodes of a run or of an exported dataset."""
    with source_errors(path := find_data(source)):
        for where, row in open_source(path, DataConfig(episodes=episodes)).rows:
            if not isinstance(row, Mapping) or not isinstance(row.get("turns"), list):
                fix = "Give a run, or what `turnwise data export` wrote."
                raise UserError(f"{where} is not a trajectory of a run. {fix}")
            yield where, row


@contextmanager
def source_errors(path: Path) -> Iterator[None]:
    """Turn errors of reading a source into a UserError."""
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{read_failure(path, error)}. Restore it, or give another source.") from error


def _is_scored(row: Any, where: str, folder: Path) -> bool:
    """Return whether an episode has rewards, after checking what needs no model."""
    if is_trajectory(row):
        parse_trajectory(row, where)
        return True
    return parse_episode(row, where, folder).turn_rewards is not None


def is_trajectory(row: Any) -> bool:
    """Return whether a row has the ids that were sampled, and not only text."""
    return isinstance(row, Mapping) and "turns" in row


def parse_trajectory(row: Mapping[str, Any], where: str) -> Trajectory:
    try:
        trajectory = trajectory_from_row(from_dataset_row({"rewards": {}, "timings": {}, **row}))
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    if not all(map(math.isfinite, trajectory.turn_rewards)):
        raise UserError(f"{where}: a reward is not finite. Restore the file from a copy.")
    return trajectory


def check_has_reward(scored: bool, where: str, config: Config) -> None:
    needed = config.algo.uses_rewards or isinstance(config.data.keep, float)
    if needed and not scored:
        raise UserError(
            f"{where} has no reward, which {config.algo.source_of_advantages} needs. Add a column reward "
            "or success, or imitate it: algo.preset bc."
        )


def open_source(path: Path, data: DataConfig) -> Source:
    if (path / CONFIG_FILE).is_file():
        return _open_run(path, data)
    if (run := labelled_run(path)) is not None:
        settings, rows = build(read_run(str(run))), read_labelled(run, Label.GOOD, Label.BAD)
        rows = (_add_sampler(where, row, settings) for where, row in rows)
        return Source(rows=rows, tokens=run / "trajectories" / TOKENS_FILE, folder=run)
    if path.is_file():
        if not is_table_file(str(path)):
            raise UserError(f"data.sources: {path} does not end in {', '.join(READERS)}. Convert it, or give a run.")
        rows = READERS[path.suffix.lower()](path)
        return Source(rows=rows, tokens=path.with_name(TOKENS_FILE), folder=path.parent)
    if is_minari(path):
        return Source(rows=_read_minari(path), tokens=path / TOKENS_FILE, folder=path)
    files = sorted(file for file in path.rglob("*") if file.suffix in DATASET_FILES and file.name != TOKENS_FILE)
    if not files:
        raise UserError(f"data.sources: {path} has no {', '.join(DATASET_FILES)} file. Give a run, a file or a folder.")
    rows = (row for file in files for row in READERS[file.suffix](file))
    return Source(rows=rows, tokens=path / TOKENS_FILE, folder=path)


def _open_run(path: Path, data: DataConfig) -> Source:
    settings = build(read_run(str(path)))
    if settings.data.sources and data.episodes != "evaluation":
        raise UserError(
            f"{path} was itself trained on stored episodes. Name its own data.sources, or set data.episodes evaluation."
        )
    folder = path / "trajectories"
    files = sorted(file for pattern in PATTERNS[data.episodes] for file in folder.glob(pattern))
    if not files:
        raise UserError(f"{path} recorded no {data.episodes} episodes. Give a run with record.trajectories above 0.")
    rows = (_add_sampler(where, row, settings) for file in files for where, row in read_jsonl_rows(file))
    return Source(rows=rows, tokens=folder / TOKENS_FILE, folder=path)


def _add_sampler(where: str, row: Any, settings: Config) -> tuple[str, Any]:
    """Add the sampler to a row that an earlier version recorded without it, from the settings of its run."""
    if not isinstance(row, Mapping) or "sampler" in row:
        return where, row
    played, evaluated = settings.rollout, settings.eval
    if "evaluation" in row:
        sampler = Sampler(temperature=evaluated.temperature, top_p=evaluated.top_p, top_k=evaluated.top_k)
    else:
        sampler = Sampler(temperature=played.temperature)
    return where, {**row, "sampler": asdict(sampler)}


def is_minari(path: Path) -> bool:
    """Return whether a folder is a Minari dataset, whose data/metadata.json names the storage format."""
    file = path / "data" / "metadata.json"
    return file.is_file() and '"data_format"' in file.read_text(encoding="utf-8", errors="replace")


def _read_minari(path: Path) -> Rows:
    """Read the episodes as rows of steps (`data/episodes.py`), from either storage format of Minari."""
    try:
        import minari

        for episode in minari.MinariDataset(path / "data").iterate_episodes():
            columns = ("observations", "actions", "rewards", "terminations", "truncations")
            yield f"{path} episode {episode.id}", {name: _plain(getattr(episode, name)) for name in columns}
    except ImportError:  # of minari, or of the package for the storage format
        raise UserError(f"{path} is a Minari dataset. Run `pip install 'turnwise[minari]'`.") from None
    except (OSError, KeyError, ValueError, TypeError, AssertionError) as error:
        raise UserError(f"{path} is damaged ({first_line(error, 80)}). Restore it.") from error


def _plain(values: Any) -> Any:
    """Return a list of Python values for an array; columns of other types are refused where rows are parsed."""
    return values.tolist() if hasattr(values, "tolist") else values
