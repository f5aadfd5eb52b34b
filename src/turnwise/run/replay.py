"""Play the episodes of a run again, and sample branches from their turns."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import torch

from turnwise.config.load import build, read_run
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.core.task import EpisodeKey
from turnwise.core.trajectory import Group, Trajectory
from turnwise.evaluation.episodes import ROUND, RUN_SEED
from turnwise.evaluation.replay import Branches, Difference, find_difference, play_branches
from turnwise.models.loading.lora import RUN_BASE
from turnwise.record.run_folder import RunFolder
from turnwise.record.selection import RecordedEpisode, Selection
from turnwise.rewards.judge.registry import JudgeRegistry
from turnwise.rewards.scoring import RewardSet, score_groups
from turnwise.rewards.services import RewardServices
from turnwise.rollout.collect import Collector
from turnwise.rollout.opponents import CurrentPolicy, PolicyOpponent
from turnwise.rollout.recorded import DifferentContext, RecordedPolicy
from turnwise.rollout.roles import RolesCollector
from turnwise.rollout.selfplay import MatchCollector
from turnwise.run.build import build_policy_stack, build_rewards
from turnwise.run.build_selfplay import match_collector
from turnwise.run.environment_mix import EnvironmentMix, build_environment_mix
from turnwise.run.find_model import find_checkpoint, resolve_model_name
from turnwise.run.find_source import CHECKPOINTS
from turnwise.run.load_policy import load_policy
from turnwise.run.training_run import resolve
from turnwise.training.checkpoints import step_folders, step_of

PlayedCollector = Collector | RolesCollector | MatchCollector
ShowProgress = Callable[[str, int, int], None]
"""(phase, done, total)"""
MatchId = tuple[str, int, int, int]
START = "start"
"""Name of the model that training started from."""
SCORES = ("turn_rewards", "rewards")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """An episode that was played again."""

    recorded: RecordedEpisode
    difference: Difference | None
    """The first thing that was not repeated; None: the episodes are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """Episodes of a run that were played again, and branches of one of them."""

    model: str
    """Model that was loaded: a checkpoint of the run by its name, START, another run, or a model."""
    replays: Sequence[Replay]
    """With the recorded actions."""
    resampled: Sequence[Replay] = ()
    """With actions that `model` sampled; empty if other weights sampled the recorded ones."""
    branches: Sequence[Branches] = ()
    """By turn."""

    @property
    def equal(self) -> bool:
        """Whether all episodes are equal to their records."""
        return not self.differing

    @property
    def differing(self) -> list[Replay]:
        """The first replay of each episode that is not equal to its record."""
        played = {id(replay.recorded): replay for replay in (*self.resampled, *self.replays) if replay.difference}
        return list(played.values())


def replay(
    run: Path,
    selection: Selection,
    *,
    turns: Sequence[int] | None = (),
    samples: int = 64,
    model: str | None = None,
    progress: ShowProgress = lambda phase, done, total: None,
) -> ReplayResult:
    """Play the selected episodes again, with their tokens too if the weights that sampled them are kept.

    `turns`: turns of the episode, counted from 0, to sample `samples` branches from; None: all of them.
    `model`: what goes on in branches. None: the weights that sampled the episodes, or else the newest checkpoint.
    """
    folder = RunFolder.open(run)
    recorded = selection.read(folder)
    turns = _check_turns(recorded, turns)
    sampler = find_sampler(run, recorded)
    opened = OpenedRun(folder, model or sampler)

    async def work() -> ReplayResult:
        replays = await opened.play_record(recorded, progress)
        resampled = await opened.sample_again(recorded) if opened.model == sampler else []
        branches = []
        for number, turn in enumerate(turns):
            progress("turns", number, len(turns))
            branches.append(await opened.branch(recorded[0], turn, samples))
        return ReplayResult(model=opened.model, replays=replays, resampled=resampled, branches=branches)

    return asyncio.run(opened.services.run(work()))


def _check_turns(recorded: Sequence[RecordedEpisode], turns: Sequence[int] | None) -> Sequence[int]:
    if turns is not None and not turns:
        return ()
    if len(recorded) != 1:
        raise UserError(f"Branches start from one episode, not from {len(recorded)}. Name its step, group and member.")
    number = len(recorded[0].trajectory.turns)
    turns = range(number) if turns is None else turns
    for turn in turns:
        if not 0 <= turn < number:
            raise UserError(f"The episode has no turn {turn + 1}: choose 1 to {number}.")
    return turns


def find_sampler(run: Path, recorded: Sequence[RecordedEpisode]) -> str | None:
    """Return the name of the weights that sampled all tokens of these episodes; None if they are not kept."""
    turns = [turn for episode in recorded for turn in episode.trajectory.turns]
    versions = {version for turn in turns for version in turn.policy_versions}
    folders = {0: START} | {step_of(folder): folder.name for folder in step_folders(run / CHECKPOINTS)}
    return folders.get(versions.pop()) if len(versions) == 1 else None


class OpenedRun:
    """The environments, contexts and rewards of a run, and a model. `model`: None is the newest checkpoint."""

    def __init__(self, folder: RunFolder, model: str | None) -> None:
        self._folder = folder
        self.model = find_checkpoint(folder.path, None).name if model is None else model
        self._config = _configure(folder.path, self.model)
        torch.set_num_threads(self._config.system.threads)
        self.services = RewardServices()
        self._environments = _build_environments(folder.path, self._config).with_services(self.services)
        loaded, _ = load_policy(self._config, self._environments, lambda done, total: None)
        self._stack = build_policy_stack(self._config, self._environments, loaded)
        self._rewards: RewardSet | None = None
        if not self._config.reward.judges:  # who cost money, and may have changed
            settings, decode = self._config, self._stack.renderer.decode
            self._rewards = build_rewards(settings.reward, settings.rollout, JudgeRegistry(), decode)

    async def play_record(self, recorded: Sequence[RecordedEpisode], progress: ShowProgress) -> list[Replay]:
        """Play episodes with their recorded actions, and compare all that follows from them."""
        replays: list[Replay] = []
        for step, episodes in groupby(recorded, key=lambda episode: episode.step):
            chosen = list(episodes)
            everyone = Selection(step=step, evaluation=chosen[0].evaluation).read(self._folder)
            policy = RecordedPolicy(episode.trajectory for episode in everyone)
            replays += await self._play(replace(self._collector(chosen[0]), policy=policy), chosen, everyone)
            progress("episodes", len(replays), len(recorded))
        return replays

    async def sample_again(self, recorded: Sequence[RecordedEpisode]) -> list[Replay]:
        """Play episodes with the model in place of the record, and compare what it samples too."""
        everyone = Selection(step=recorded[0].step, evaluation=recorded[0].evaluation).read(self._folder)
        return await self._play(self._collector(recorded[0]), recorded, everyone)

    async def branch(self, recorded: RecordedEpisode, turn: int, samples: int) -> Branches:
        """Sample how an episode goes on from a turn, counted from 0."""
        collector = self._collector(recorded)
        if not isinstance(collector, Collector):
            raise UserError(
                f"{self._folder.path} has several agents in an episode, whose turns depend on each other. Its episodes "
                "can be played again, but not branched."
            )
        return await play_branches(collector, self._key(recorded), recorded.trajectory, turn, samples=samples)

    async def _play(
        self, collector: PlayedCollector, recorded: Sequence[RecordedEpisode], everyone: Sequence[RecordedEpisode]
    ) -> list[Replay]:
        """Play episodes, each with the others of its match, which are among `everyone`."""
        gate = asyncio.Semaphore(max(1, collector.in_flight // collector.tasks_per_match))
        matches: dict[MatchId, list[RecordedEpisode]] = {}
        for episode in everyone:
            matches.setdefault(match_id(episode), []).append(episode)

        async def play(episode: RecordedEpisode) -> Replay:
            match = matches[match_id(episode)] if collector.tasks_per_match > 1 else [episode]
            async with gate:
                difference = await self._find_difference(collector, list(map(self._key, match)), episode.trajectory)
            return Replay(recorded=episode, difference=difference)

        return await asyncio.gather(*map(play, recorded))

    async def _find_difference(
        self, collector: PlayedCollector, keys: Sequence[EpisodeKey], recorded: Trajectory
    ) -> Difference | None:
        try:
            episodes = await collector.episodes(keys)
        except DifferentContext as different:
            turn, before, now = different.turn, different.recorded, different.built
            return Difference(turn=turn, name="context_ids", recorded=before, replayed=now)
        episode = next(episode for episode in episodes if episode.task == recorded.task)
        if self._rewards is None or not recorded.rewards:  # evaluations are not scored
            return find_difference(recorded, episode, ignore=SCORES)
        return find_difference(recorded, await score_episode(episode, self._rewards))

    def _collector(self, episode: RecordedEpisode) -> PlayedCollector:
        """Return what played the episode: the collector of training, of matches in self-play, or of evaluations."""
        collector = self._stack.collector if episode.evaluation is None else self._stack.evaluator
        opponent = self._config.selfplay.opponent
        if episode.evaluation is None and isinstance(opponent, PolicyOpponent):
            if not isinstance(opponent, CurrentPolicy):
                raise UserError(
                    f"{self._folder.path} played against its snapshots, whose moves are not recorded. Its training "
                    "episodes cannot be played again."
                )
            collector = match_collector(self._stack, self._environments, None)
        assert isinstance(collector, PlayedCollector)
        return collector

    def _key(self, episode: RecordedEpisode) -> EpisodeKey:
        trained, played = episode.evaluation is None, episode.trajectory
        return EpisodeKey(
            run_seed=self._config.seed if trained else RUN_SEED,
            round=episode.step - 1 if trained else ROUND,  # steps are recorded from 1 on, and played from 0 on
            task=played.task,
            member=played.member,
            attempt=played.attempt,
        )


def match_id(episode: RecordedEpisode) -> MatchId:
    """Return what the episodes of a match, one for each of its agents, have in common."""
    played = episode.trajectory
    return played.task.env, played.task.seed, played.member, played.attempt


async def score_episode(episode: Trajectory, rewards: RewardSet) -> Trajectory:
    """Return the episode with the rewards that training optimises."""
    scored = await score_groups([Group(task=episode.task, trajectories=(episode,))], rewards)
    if not scored.groups:
        raise UserError(f"The rewards of an episode cannot be computed: {scored.last_failure}.")
    return scored.groups[0].trajectories[0]


def _configure(run: Path, model: str) -> Config:
    """Return the settings of the run, with the model in this process."""
    settings = read_run(str(run))
    for section in ("engine", "cluster"):  # the servers of the training run may be gone
        settings.pop(section, None)
    if model == START:
        name = str(run / RUN_BASE) if (run / RUN_BASE).is_dir() else settings["model"]["name"]
    else:
        own = run / CHECKPOINTS / model
        name = str(find_checkpoint(run, model)) if own.is_dir() else resolve_model_name(model)
    config = build(settings, [("model.name", name)], load_code=True)
    in_flight = max(2, config.rollout.in_flight)  # branches share one more context
    return resolve(config.model_copy(update={"rollout": config.rollout.model_copy(update={"in_flight": in_flight})}))


def _build_environments(run: Path, config: Config) -> EnvironmentMix:
    environments = build_environment_mix(config.env, config.agent)
    if environments.has_agent:
        raise UserError(f"{run} trained an agent's own program, which cannot be played again turn by turn.")
    if not environments.specs:
        raise UserError(f"{run} trained on stored data: it has no environment to play again.")
    return environments
