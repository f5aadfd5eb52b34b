"""`turnwise eval`: evaluate runs, models and endpoints on equal tasks, compare them, and save every episode."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from turnwise.core.errors import UserError
from turnwise.core.task import Task
from turnwise.core.trajectory import Trajectory
from turnwise.evaluation.episodes import (
    Evaluation,
    TaskId,
    TaskTry,
    checked_evaluation,
    list_tries,
    run_episodes,
    task_id,
)
from turnwise.files.disk import unused_path
from turnwise.files.run_folders import RUNS_FOLDER
from turnwise.pictures.image_store import ImageStore
from turnwise.record.evaluation_folder import EvaluationFolder
from turnwise.record.images import IMAGES_FOLDER
from turnwise.report.evaluation_progress import EvaluationProgress
from turnwise.report.html_report import write_report
from turnwise.report.terminal import make_console, print_command, sanitize_line
from turnwise.rewards.services import RewardServices
from turnwise.run.evaluation.models import (
    DEFAULT_ENDPOINT_OPTIONS,
    EndpointOptions,
    EvaluatedModel,
    EvaluationPolicy,
    check_endpoints,
    open_policy,
)
from turnwise.run.evaluation.plan import EvaluationPlan, load_plan, save_plan
from turnwise.run.evaluation.results import EvaluationResults, draw_figure, print_results, summarise_results
from turnwise.text.command_line import spell_command

EpisodeId = tuple[TaskId, int]
"""A task and the number of the try."""


def episode_id(task: Task, member: int) -> EpisodeId:
    return task_id(task), member


def evaluate_into_folder(
    plan: EvaluationPlan,
    out: Path | None = None,
    *,
    endpoint_options: EndpointOptions = DEFAULT_ENDPOINT_OPTIONS,
    console: Console | None = None,
) -> EvaluationResults:
    """Evaluate into a folder; None creates one. Episodes that the folder already holds are not run again."""
    console = console or make_console()
    path = out or default_folder(plan)
    for model in plan.models:
        if model.url is not None:
            endpoint_options.endpoint(
                model.url, model.source
            )  # report a missing key before the first model is evaluated
    with EvaluationFolder(path) as folder:
        save_plan(folder, plan, key_variable=endpoint_options.key_variable)
        with _explain_resuming(folder):
            results = _evaluate(plan, folder, endpoint_options, console)
        folder.write_results(summarise_results(results), draw_figure(results))
        write_report(folder.path)
    console.print(f"Saved in {path}", markup=False, soft_wrap=True)
    if results.dropped:
        print_command(
            console, f"{results.dropped} episodes were dropped. Retry them:", spell_command("eval", "--resume", path)
        )
    return results


def resume_evaluation(
    path: Path, *, endpoint_options: EndpointOptions = DEFAULT_ENDPOINT_OPTIONS, console: Console | None = None
) -> EvaluationResults:
    """Run the episodes that are missing in an evaluation folder."""
    plan, key_variable = load_plan(path)
    if endpoint_options.key_variable is None:
        endpoint_options = replace(endpoint_options, key_variable=key_variable)
    return evaluate_into_folder(plan, path, endpoint_options=endpoint_options, console=console)


def default_folder(plan: EvaluationPlan) -> Path:
    first, *others = plan.models
    more = f"-and-{len(others)}-more" if others else ""
    return unused_path(Path(RUNS_FOLDER) / f"eval-{plan.spec.name}-{first.name}{more}")


@contextmanager
def _explain_resuming(folder: EvaluationFolder) -> Iterator[None]:
    """Add to an error or interrupt how to resume, if any episode is saved."""
    try:
        yield
    except (UserError, KeyboardInterrupt) as error:
        if not folder.has_episodes:
            raise
        reason = str(error).rstrip(".") or "Stopped"
        raise type(error)(
            f"{reason}. Finished episodes are saved; resume with: {spell_command('eval', '--resume', folder.path)}"
        ) from error.__cause__


def _evaluate(
    plan: EvaluationPlan, folder: EvaluationFolder, endpoint_options: EndpointOptions, console: Console
) -> EvaluationResults:
    """Run the missing episodes of each model in turn and print the tables."""
    if plan.note:
        console.print(sanitize_line(plan.note), soft_wrap=True)
    services = RewardServices()  # one budget for all models
    plan = replace(plan, spec=replace(plan.spec, services=services))
    evaluations = [_ModelEvaluation(plan, model, folder, endpoint_options, console, services) for model in plan.models]
    remote = [evaluation.model for evaluation in evaluations if evaluation.model.url and evaluation.missing()]
    asyncio.run(check_endpoints(remote, endpoint_options))
    results = EvaluationResults(
        environment=plan.spec.name,
        params=plan.params,
        split=plan.split,
        tasks=len(plan.seeds),
        tries=plan.tries,
        models=plan.models,
        evaluations=[evaluation.run() for evaluation in evaluations],
    )
    print_results(results, console)
    return results


@dataclass(frozen=True, slots=True)
class _ModelEvaluation:
    """Evaluation of one model."""

    plan: EvaluationPlan
    model: EvaluatedModel
    folder: EvaluationFolder
    endpoint_options: EndpointOptions
    console: Console
    services: RewardServices

    def missing(self) -> list[TaskTry]:
        """Return the episodes that the folder does not have."""
        tries = list_tries(self.plan.tasks(), self.plan.tries)
        done = self._read_saved(tries)
        return [task_try for task_try in tries if episode_id(*task_try) not in done]

    def run(self) -> Evaluation:
        tries = list_tries(self.plan.tasks(), self.plan.tries)
        done = self._read_saved(tries)
        missing = [task_try for task_try in tries if episode_id(*task_try) not in done]
        failures = self._run_episodes(missing, done) if missing else []
        if not done:
            last = failures[-1]
            raise UserError(f"Every episode of {self.model.label} failed. Last failure: {last}") from last
        trajectories = tuple(done[key] for key in (episode_id(*task_try) for task_try in tries) if key in done)
        return checked_evaluation(trajectories, len(tries), failures[-1] if failures else None)

    def _read_saved(self, tries: Sequence[TaskTry]) -> dict[EpisodeId, Trajectory]:
        """Return the saved episodes among these."""
        ids = {episode_id(*task_try) for task_try in tries}
        saved = self.folder.read_trajectories(self.model.name)
        by_id = {episode_id(trajectory.task, trajectory.member): trajectory for trajectory in saved}
        return {key: trajectory for key, trajectory in by_id.items() if key in ids}

    def _run_episodes(self, missing: Sequence[TaskTry], done: dict[EpisodeId, Trajectory]) -> list[Exception]:
        """Run episodes, add them to `done`, and return the failures."""
        solved, total = sum(trajectory.status.succeeded for trajectory in done.values()), len(missing) + len(done)
        progress = EvaluationProgress(self.console, self.model.label, total=total, done=len(done), solved=solved)

        async def run(opening: AbstractAsyncContextManager[EvaluationPolicy]) -> list[Exception]:
            async with opening as policy:
                return await run_episodes(
                    policy.runner,
                    missing,
                    in_flight=policy.in_flight,
                    attempts=self.model.config.rollout.attempts,
                    on_finished=self._saver(policy, done, progress),
                )

        with progress:
            show_warmup = partial(progress.set_phase, "warm-up")
            plan = self.plan
            images = ImageStore(self.folder.path / IMAGES_FOLDER)
            opening = open_policy(self.model, plan.spec, plan.params, self.endpoint_options, show_warmup, images)
            return asyncio.run(self.services.run(run(opening)))

    def _saver(
        self, policy: EvaluationPolicy, done: dict[EpisodeId, Trajectory], progress: EvaluationProgress
    ) -> Callable[[Trajectory], None]:
        indices = {seed: index for index, seed in enumerate(self.plan.seeds)}

        def save(trajectory: Trajectory) -> None:
            index = indices[trajectory.task.seed]
            self.folder.add_episode(self.model.name, trajectory, index, policy.decode, policy.name_token)
            done[episode_id(trajectory.task, trajectory.member)] = trajectory
            progress.add_episode(trajectory.status.succeeded)

        return save
