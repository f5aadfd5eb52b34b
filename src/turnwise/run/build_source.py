"""Build the source of a step's episodes: plays them, at once or ahead, or draws stored ones."""

from functools import partial

from turnwise.algos.user_code import build_own
from turnwise.rollout.collect import GroupCollector
from turnwise.rollout.settings import SourceSettings
from turnwise.run.build import PolicyStack, build_rewards
from turnwise.run.build_parts import Parts
from turnwise.training.sources.played import Played, RetryRounds, TaskResults, filter_groups
from turnwise.training.sources.played_ahead import PlayedAhead
from turnwise.training.sources.stored import Stored
from turnwise.training.step import RunParts, Source


def choose_source(given: RunParts) -> Source:
    """Return the user's source, if rollout.source names one, else the built-in one."""
    chosen = given.config.rollout.source
    if not isinstance(chosen, SourceSettings):
        return given.source
    source: Source = build_own(chosen, "rollout.source", given, "groups")
    return source


def build_source(built: Parts, collector: GroupCollector, results: TaskResults) -> Source:
    config, stack, show = built.config, built.stack, built.run.progress.phase
    select = partial(
        filter_groups,
        learner=built.learner,
        algo=config.algo,
        micro_tokens=built.plan.micro_tokens,
        allowed_sets=stack.renderer.grammars.allowed_sets,
    )
    if built.replay is not None:
        return Stored(
            replay=built.replay,
            algo=config.algo,
            select=select,
            count=config.rollout.groups,
            group_size=config.rollout.group_size,
            run_seed=config.seed,
            show=show,
        )
    played = Played(
        tasks=built.run.tasks,
        results=results,
        collector=collector,
        greedy=stack.greedy if config.algo.needs_greedy else None,
        rewards=build_rewards(config.reward, config.rollout, built.run.services.judges, stack.renderer.decode),
        select=select,
        scale=config.algo.filter.rate_scale,
        count=config.rollout.groups,
        group_size=config.rollout.group_size,
        refill=config.algo.filter.refill_rounds,
        retry=_retry_rounds(config.rollout.retry_unsolved, stack),
        show=show,
    )
    staleness = config.rollout.max_staleness
    if not staleness:
        return played
    return PlayedAhead(
        played,
        max_staleness=staleness,
        steps=config.train.steps,
        in_flight=config.rollout.in_flight,
        spans=built.spans,
    )


def _retry_rounds(rounds: int, stack: PolicyStack) -> RetryRounds | None:
    if not rounds:
        return None
    assert stack.retry is not None, "check_settings_fit rejects rollout.retry_unsolved on a cluster"
    return RetryRounds(collector=stack.retry, rounds=rounds)
