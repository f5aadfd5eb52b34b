"""From a configuration to self-play: who sits on the other side, and the ladder of a run's own past."""

from turnwise.config.schema import Config
from turnwise.core.protocols import Policy
from turnwise.core.samples import Learner
from turnwise.envs.games.selfplay import make_selfplay_envs
from turnwise.models.layers import copy_model
from turnwise.models.loading.load import LoadedModel
from turnwise.recipes.build import PolicyStack, build_engine, model_loader
from turnwise.recipes.environment_mix import EnvironmentMix
from turnwise.record.run_folder import RunFolder
from turnwise.report.progress import Progress
from turnwise.rollout.collect import GroupCollector
from turnwise.rollout.selfplay import MatchCollector
from turnwise.rollout.tasks import TaskSource, alternate_players
from turnwise.training.checkpoints import Checkpoints
from turnwise.training.selfplay import FrozenPolicy, Ladder, Opponents, Snapshots


def build_selfplay(
    config: Config,
    worlds: EnvironmentMix,
    tasks: TaskSource,
    loaded: LoadedModel,
    stack: PolicyStack,
    learner: Learner,
    checkpoints: Checkpoints,
    folder: RunFolder,
    progress: Progress,
) -> tuple[GroupCollector, Opponents | None]:
    """Return the collector of training episodes, and the opponents where the run has some."""
    settings = config.selfplay
    if settings.opponent == "none":
        return stack.collector, None
    past, games = settings.opponent == "past", settings.ladder_games
    frozen = build_frozen_policy(config, loaded, stack) if past or games else None
    ladder = None
    if frozen is not None and games:
        against = match_collector(stack, worlds, frozen.engine)
        ladder = Ladder(collector=against, tasks=alternate_players(tasks.first_tasks("validation", games)))
    opponents = Opponents(
        snapshots=Snapshots(
            folder.past, every=settings.snapshot_every, keep=settings.snapshots, tokenizer=loaded.tokenizer
        ),
        frozen=frozen,
        trained_against=past,
        ladder=ladder,
        learner=learner,
        run_seed=config.seed,
        checkpoints=checkpoints,
        folder=folder,
        progress=progress,
    )
    return match_collector(stack, worlds, frozen.engine if frozen is not None and past else None), opponents


def build_frozen_policy(config: Config, loaded: LoadedModel, stack: PolicyStack) -> FrozenPolicy:
    """Build an engine over a copy of the model; a snapshot is loaded into it before it plays."""
    model = copy_model(loaded.model).requires_grad_(False)
    engine = build_engine(config, model, stack.renderer, pages=stack.pages)
    return FrozenPolicy(engine, model_loader(config))


def match_collector(stack: PolicyStack, worlds: EnvironmentMix, opponent: Policy | None) -> MatchCollector:
    """The training collector's settings, for matches."""
    plain = stack.collector
    return MatchCollector(
        policy=plain.policy,
        opponent=opponent,
        make_match=lambda task, member, attempt: make_selfplay_envs(worlds.kinds[task.env], task, member, attempt),
        context=plain.context,
        limits=plain.limits,
        in_flight=plain.in_flight,
        attempts=plain.attempts,
        run_seed=plain.run_seed,
    )
