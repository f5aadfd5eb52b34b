"""Stored episodes for `turnwise train --data`, checked and put into a replay buffer. Sources: `stored_sources.py`.

Ids are trained as they were sampled, so a source with ids has to name them (tokens.jsonl): the names must be those of
the model's tokenizer. Images come from images/HASH.png (`stored_images.py`). One bad row stops the run before it trains
on anything, with its file and line.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.core.trajectory import Trajectory, Turn
from turnwise.data.demonstrations import build_episode
from turnwise.data.episodes import parse_episode
from turnwise.data.replay import Replay
from turnwise.data.settings import DataConfig
from turnwise.files.disk import wrap_disk_errors, write_atomic
from turnwise.files.table_files import read_jsonl_rows
from turnwise.render.renderer import Renderer
from turnwise.run.find_source import find_data
from turnwise.run.stored_images import StoredImages, check_sampler_reads_images, find_images_folder
from turnwise.run.stored_sources import (
    FILLED,
    check_has_reward,
    is_trajectory,
    open_source,
    parse_trajectory,
    source_errors,
)
from turnwise.training.sources.stored import has_comparable

STORED_CAPACITY = 1_000_000
"""Largest number of stored episodes that a run trains on: of more, the newest are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEpisode:
    trajectory: Trajectory
    where: str
    """File and line."""
    scored: bool
    """See `Entry.scored`."""
    is_text: bool = False
    """True: its ids were rendered from text."""

    @property
    def sampled(self) -> bool:
        """See `Entry.sampled`."""
        return not self.sampler_problem

    @property
    def sampler_problem(self) -> str:
        """Return why the episode was not drawn from its log-probabilities, as far as known; "" if it was."""
        sampler = self.trajectory.sampler
        if self.is_text:
            return "written as text"
        if sampler is None:
            return "recorded without sampling settings, as by older versions"
        return "" if sampler.is_exact else f"sampled {sampler.describe()}"


def read_episodes(
    path: Path, data: DataConfig, renderer: Renderer, vocabulary: int, images: StoredImages
) -> Iterator[StoredEpisode]:
    """Read the episodes of a source. `images` checks and remembers the images that they show."""
    source, checked = open_source(path, data), False
    images_folder = find_images_folder(source.folder)
    with source_errors(path):
        for where, row in source.rows:
            if not is_trajectory(row):
                yield _render(row, where, path.stem, source.folder, renderer)
                continue
            if not checked:
                _check_tokens(source.tokens, where, renderer)
                checked = True
            trajectory = _read_trajectory(row, where, vocabulary, renderer)
            images.check(trajectory, images_folder, where)
            yield StoredEpisode(trajectory=trajectory, where=where, scored=True)


def _render(row: Any, where: str, env: str, folder: Path, renderer: Renderer) -> StoredEpisode:
    episode = parse_episode(row, where, folder)
    if not renderer.reads_images and any(
        message.images for exchange in episode.exchanges for message in exchange.messages
    ):
        raise UserError(f"{where} has images, and the model reads text only. Choose one that reads images.")
    trajectory = build_episode(episode, env, renderer)
    return StoredEpisode(trajectory=trajectory, where=where, scored=episode.turn_rewards is not None, is_text=True)


def _check_tokens(names: Path, where: str, renderer: Renderer) -> None:
    """Raise UserError if ids mean other tokens than the model's."""
    if not names.is_file():
        raise UserError(f"{where} has token ids, and {names} is missing, which says what they mean. Restore it.")
    for line, row in read_jsonl_rows(names):
        try:
            token, text = row["id"], row["text"]
            known = renderer.name_token(token).text
        except (KeyError, TypeError, IndexError, ValueError, OverflowError):
            raise UserError(f"{line} does not name a token of this model. Give the model that recorded it.") from None
        if known != text:
            raise UserError(
                f"{line}: token {token} is {text!r} there and {known!r} in this model. Give the model that recorded it."
            )


def _read_trajectory(row: Mapping[str, Any], where: str, vocabulary: int, renderer: Renderer) -> Trajectory:
    trajectory = parse_trajectory(row, where)
    placeholder = None if renderer.images is None else renderer.images.placeholder_id
    for number, turn in enumerate(trajectory.turns, start=1):
        if problem := _find_problem(turn, vocabulary, placeholder, first=number == 1):
            raise UserError(f"{where}: turn {number} {problem}. Restore the file from a copy.")
    return trajectory


def _find_problem(turn: Turn, vocabulary: int, placeholder: int | None, *, first: bool) -> str | None:
    """Return what makes the turn unfit for training; None if nothing does.

    `placeholder`: token that stands for images in the model's own format. It is never sampled, and no context has it.
    """
    ids = (*turn.context_ids, *turn.action_ids)
    if not all(type(token_id) is int and token_id < vocabulary and token_id != placeholder for token_id in ids):
        return "has ids that are not tokens of this model"
    if min(turn.action_ids, default=0) < 0:
        return "has sampled ids that are not tokens of this model"
    if not turn.context_ids and (first or not turn.extends):
        return "has no context"
    if len(turn.action_logprobs) != len(turn.action_ids):
        return f"has {len(turn.action_ids)} sampled ids and {len(turn.action_logprobs)} log-probabilities"
    if turn.policy_versions and len(turn.policy_versions) != len(turn.action_ids):
        return f"has {len(turn.action_ids)} sampled ids and {len(turn.policy_versions)} policy versions"
    if not all(-math.inf < logprob <= 0 for logprob in turn.action_logprobs):
        return "has a log-probability that is not a finite number of at most 0"
    if not 0 < turn.temperature < math.inf:
        return "has a temperature that is not a finite number above 0"
    return None


def fill_replay(
    replay: Replay, config: Config, renderer: Renderer, vocabulary: int, note: Callable[[str], None]
) -> None:
    """Put the episodes of all sources into the buffer, unless a run that is resumed has done so.

    Images of the episodes that are in the buffer at the end are copied into the run's images/ folder.
    """
    marker, data, images = replay.folder / FILLED, config.data, StoredImages(renderer.images)
    if marker.is_file():
        return
    with wrap_disk_errors(replay.folder, "start again (nothing was trained)"):
        replay.discard_from(0)  # of a fill that was killed
        for source in data.sources:
            kept, left = Counter[str](), Counter[str]()
            for episode in read_episodes(find_data(source), data, renderer, vocabulary, images):
                _check_length(episode, config.rollout.max_tokens)
                check_sampler_reads_images(episode.trajectory, config, episode.where)
                check_has_reward(episode.scored, episode.where, config)
                if reason := _add(replay, episode, data):
                    left[reason] += 1
                else:
                    kept[episode.sampler_problem] += 1
            note(_describe(source, kept, left))
            replay.prune(0)
        _check_filled(replay, config)
        images.keep(replay.find_images())
        write_atomic(marker, json.dumps({"sources": data.sources, "episodes": len(replay)}).encode())


def _add(replay: Replay, episode: StoredEpisode, data: DataConfig) -> str:
    """Add an episode that the settings keep; return why it was left out, "" if it was not."""
    trajectory = episode.trajectory
    if data.keep == "succeeded" and not trajectory.status.succeeded:
        return "without success"
    if isinstance(data.keep, float) and trajectory.total_reward < data.keep:
        return f"with a reward below data.keep {data.keep:g}"
    if not trajectory.num_sampled:
        return "without answers"
    added = replay.add(trajectory, source=episode.where, sampled=episode.sampled, scored=episode.scored)
    return "" if added else "known already"


def _describe(source: str, kept: Counter[str], left: Counter[str]) -> str:
    """Describe the episodes of a source: `kept` counts them by `sampler_problem`, `left` by why they are left out."""
    exact = [f"{kept['']:,} episodes with the log-probabilities of their sampler"] * bool(kept[""])
    others = [f"{count:,} episodes without (they were {problem})" for problem, count in kept.items() if problem]
    parts = [*exact, *others] or ["no episodes"]
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in left.items())
    return f"{source}: {', '.join(parts)}" + (f"; left out: {reasons}" if reasons else "")


def _check_length(episode: StoredEpisode, limit: int) -> None:
    for segment in episode.trajectory.segments():
        length = sum(len(turn.context_ids) + len(turn.action_ids) for turn in segment.turns)
        if length > limit:
            raise UserError(
                f"{episode.where} has {length} tokens, and rollout.max_tokens is {limit}. "
                f"Set rollout.max_tokens to at least {length}."
            )


def _check_filled(replay: Replay, config: Config) -> None:
    names = ", ".join(config.data.sources)
    if not len(replay):
        raise UserError(f"{names}: no episode is left to train on. Give others, or lower data.keep.")
    if config.algo.needs_groups and not has_comparable(replay, config.algo):
        raise UserError(
            f"{names}: no task has two episodes with different rewards, which algo.advantage "
            f"{config.algo.advantage.kind} compares. Give runs that played the same tasks, or "
            "choose awr or filtered_bc."
        )
