"""`turnwise eval`: runs, models and endpoints on equal tasks, side by side, every episode saved."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from turnwise.config.load import Overrides
from turnwise.core.errors import UserError
from turnwise.core.task import Split, Task
from turnwise.core.trajectory import Trajectory
from turnwise.envs.registry import load_spec
from turnwise.envs.seeds import FIRST_SEED, seed_for
from turnwise.envs.spec import EnvSpec
from turnwise.evaluation.episodes import Evaluation, TaskId, Wanted, all_tries, play_episodes, task_id
from turnwise.recipes.contexts import check_context
from turnwise.recipes.environment_mix import name_of_rows
from turnwise.recipes.eval_contestants import (
    DEFAULT_ENDPOINT_OPTIONS,
    Contestant,
    EndpointOptions,
    EvaluationPolicy,
    Remote,
    contestants,
    open_policy,
    split_environment,
)
from turnwise.recipes.eval_results import (
    Results,
    figure,
    free_path,
    read_seeds,
    save_plan,
    saved_contestants,
    show,
    summary,
)
from turnwise.recipes.training_run import resolve
from turnwise.recipes.validate import check_model, check_servers, check_threads
from turnwise.record.evaluation_folder import EvaluationFolder, read_plan
from turnwise.report.evaluation_progress import EvaluationProgress
from turnwise.report.html_report import write_report
from turnwise.report.terminal import make_console, sanitize_line
from turnwise.rewards.services import RewardServices
from turnwise.rollout.failures import DroppedEpisodes, check_dropped

Done = dict[tuple[TaskId, int], Trajectory]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Who plays, on which tasks, how often each."""

    contestants: Sequence[Contestant]
    kind: EnvSpec
    params: dict[str, Any]
    split: Split
    seeds: Sequence[int]
    tries: int
    note: str = ""
    """What is said of the tasks before they are played."""

    def tasks(self) -> list[Task]:
        return [Task(env=self.kind.name, params=self.params, split=self.split, seed=seed) for seed in self.seeds]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Who was evaluated, on what, and how it did."""

    model: str
    environment: str
    split: str
    result: Evaluation


def ask(
    words: Sequence[str],
    *,
    remote: Remote | None = None,
    overrides: Overrides = (),
    seeds: str | None = None,
    tries: int | None = None,
) -> Asked:
    """`words`: SOURCE... [ENV]. All that can be refused is refused here, before anything is loaded.

    Training never evaluates on its own tasks, so eval.split knows no "train"; here it may be asked for.
    """
    if tries is not None and tries < 1:
        raise UserError(f"--tries {tries}: must be 1 or more")
    on_train = ("eval.split", "train") in overrides
    sources, environment = split_environment(words, remote)
    known = [(key, value) for key, value in overrides if not (on_train and key == "eval.split")]
    everyone = contestants(sources, environment, remote, known)
    return _asked(everyone, seeds, "train" if on_train else everyone[0].config.eval.split, tries or 1)


def _asked(everyone: Sequence[Contestant], seeds: str | None, split: Split, tries: int) -> Asked:
    everyone = [replace(each, config=resolve(each.config)) for each in everyone]
    config = everyone[0].config
    kind = load_spec(config.env.kind)
    for each in everyone:
        if each.url is None:
            check_context(each.config)
            check_model(each.config.model)
            check_threads(each.config.system)
    params = kind.check_params(config.env.params)
    kind.check_resources(params)
    chosen, note = _tasks(kind, params, split, seeds, config.eval.episodes)
    check_servers([(kind, params)])
    return Asked(contestants=everyone, kind=kind, params=params, split=split, seeds=chosen, tries=tries, note=note)


def _tasks(
    kind: EnvSpec, params: dict[str, Any], split: Split, seeds: str | None, wanted: int
) -> tuple[Sequence[int], str]:
    """Their seeds, and what to say where a split has fewer than were asked for."""
    there = kind.split_sizes(params).get(split)
    rows = f"the {split} split of {name_of_rows(kind.name, params)} has {there} tasks"
    if seeds:
        chosen = read_seeds(seeds, split)
        beyond = next(
            (seed - FIRST_SEED[split] for seed in chosen if there is not None and seed - FIRST_SEED[split] >= there),
            None,
        )
        if beyond is not None:
            raise UserError(f"--seeds {beyond}: {rows}, counted from 0: leave it out")
        return chosen, ""
    if there is None or there >= wanted:
        return [seed_for(split, index) for index in range(wanted)], ""
    note = f"{rows}, fewer than eval.episodes {wanted}: each is played, and there are no more"
    return [seed_for(split, index) for index in range(there)], note


def evaluate_source(
    source: str, environment: str | None = None, *, overrides: Overrides = (), console: Console | None = None
) -> Evaluated:
    """One run or model, with nothing saved; `environment`: left out, a run's own."""
    asked = ask([source] if environment is None else [source, environment], overrides=overrides)
    results = evaluate(asked, console=console)
    return Evaluated(model=source, environment=asked.kind.name, split=asked.split, result=results.evaluations[0])


def evaluate_into(
    asked: Asked,
    out: Path | None = None,
    *,
    wire: EndpointOptions = DEFAULT_ENDPOINT_OPTIONS,
    console: Console | None = None,
) -> Results:
    """Evaluates into a folder, a new one where none is given. Episodes that it holds already are not played again."""
    console = console or make_console()
    path = out or free_path(asked.kind.name, [each.name for each in asked.contestants])
    for each in asked.contestants:
        if each.url is not None:
            wire.endpoint(each.url, each.source)  # a key that is missing is told before the first model plays
    with EvaluationFolder(path) as folder:
        save_plan(
            folder,
            asked.contestants,
            split=asked.split,
            seeds=asked.seeds,
            tries=asked.tries,
            key_variable=wire.key_variable,
        )
        with _stopping_well(folder):
            results = evaluate(asked, folder=folder, wire=wire, console=console)
        folder.write_results(summary(results), figure(results))
        write_report(folder.path)
    console.print(f"saved in {path}", markup=False, soft_wrap=True)
    if results.missing:
        console.print(f"{results.missing} broken; play them again: turnwise eval --resume {path}", markup=False)
    return results


def go_on(path: Path, *, wire: EndpointOptions = DEFAULT_ENDPOINT_OPTIONS, console: Console | None = None) -> Results:
    """Goes on with an evaluation where it was."""
    plan = read_plan(path)
    asked = _asked(saved_contestants(path, plan), plan["seeds"], plan["split"], plan["tries"])
    wire = wire if wire.key_variable else replace(wire, key_variable=plan.get("api_key_env"))
    return evaluate_into(asked, path, wire=wire, console=console)


@contextmanager
def _stopping_well(folder: EvaluationFolder) -> Iterator[None]:
    """What ends it early says how to go on, where there is something to go on with."""
    try:
        yield
    except (UserError, KeyboardInterrupt) as error:
        if not folder.has_episodes:
            raise
        how = f"what is done is kept, go on with: turnwise eval --resume {folder.path}"
        raise type(error)(f"{str(error) or 'stopped'}; {how}") from None


def evaluate(
    asked: Asked,
    *,
    folder: EvaluationFolder | None = None,
    wire: EndpointOptions = DEFAULT_ENDPOINT_OPTIONS,
    console: Console | None = None,
) -> Results:
    """Plays what is missing, one contestant after the other, and shows the tables."""
    console = console or make_console()
    if asked.note:
        console.print(sanitize_line(asked.note), soft_wrap=True)
    services = RewardServices()  # one budget for all contestants
    asked = replace(asked, kind=replace(asked.kind, services=services))
    results = Results(
        environment=asked.kind.name,
        params=asked.params,
        split=asked.split,
        tasks=len(asked.seeds),
        tries=asked.tries,
        contestants=asked.contestants,
        evaluations=[_Table(asked, each, folder, wire, console, services).play() for each in asked.contestants],
    )
    show(results, console)
    return results


@dataclass(frozen=True, slots=True)
class _Table:
    """One contestant at its episodes."""

    asked: Asked
    contestant: Contestant
    folder: EvaluationFolder | None
    wire: EndpointOptions
    console: Console
    services: RewardServices

    def play(self) -> Evaluation:
        wanted = all_tries(self.asked.tasks(), self.asked.tries)
        done = self._done(wanted)
        left = [each for each in wanted if place(*each) not in done]
        failures = self._play(left, done) if left else []
        if not done:
            raise UserError(f"every episode of {self.contestant.label} broke; the last one: {failures[-1]}")
        found = tuple(done[place(*each)] for each in wanted if place(*each) in done)
        errors = len(wanted) - len(found)
        check_dropped(DroppedEpisodes(dropped=errors, total=len(wanted), reason=str(failures[-1] if failures else "")))
        return Evaluation(trajectories=found, errors=errors)

    def _done(self, wanted: Sequence[Wanted]) -> Done:
        """What an earlier sitting played of what is wanted now."""
        there = [] if self.folder is None else self.folder.read_trajectories(self.contestant.name)
        asked_for = {place(*each) for each in wanted}
        played = {place(each.task, each.member): each for each in there}
        return {key: each for key, each in played.items() if key in asked_for}

    def _play(self, left: Sequence[Wanted], done: Done) -> list[Exception]:
        solved, total = sum(each.status.succeeded for each in done.values()), len(left) + len(done)
        view = EvaluationProgress(self.console, self.contestant.label, total=total, done=len(done), solved=solved)

        async def play(taken: AbstractAsyncContextManager[EvaluationPolicy]) -> list[Exception]:
            async with taken as seat:
                return await play_episodes(
                    seat.player,
                    left,
                    in_flight=seat.in_flight,
                    attempts=self.contestant.config.rollout.attempts,
                    finished=self._finished(seat, done, view),
                )

        with view:
            asked = self.asked
            warmup = partial(view.set_phase, "warm-up")
            policy = open_policy(self.contestant, asked.kind, asked.params, self.wire, warmup)
            return asyncio.run(self.services.run(play(policy)))

    def _finished(
        self, seat: EvaluationPolicy, done: Done, progress: EvaluationProgress
    ) -> Callable[[Trajectory], None]:
        numbers = {seed: number for number, seed in enumerate(self.asked.seeds)}

        def finished(trajectory: Trajectory) -> None:
            if self.folder is not None:
                number = numbers[trajectory.task.seed]
                self.folder.add_episode(self.contestant.name, trajectory, number, seat.decode, seat.name_token)
            done[place(trajectory.task, trajectory.member)] = trajectory
            progress.add_episode(trajectory.status.succeeded)

        return finished


def place(task: Task, member: int) -> tuple[TaskId, int]:
    """What an episode is known by: its task, and which of its tries it is."""
    return task_id(task), member
