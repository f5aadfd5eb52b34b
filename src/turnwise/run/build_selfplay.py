"""Build self-play: the opponents of a run, and the ladder of its snapshots."""

from turnwise.core.protocols import Policy
from turnwise.engine.settings import EngineSettings
from turnwise.envs.games.selfplay import make_selfplay_envs
from turnwise.models.layers import copy_model
from turnwise.models.loading.load import LoadedModel
from turnwise.models.settings import ModelConfig
from turnwise.rollout.collect import Collector, GroupCollector
from turnwise.rollout.opponents import PastPolicy, PolicyOpponent
from turnwise.rollout.selfplay import MatchCollector
from turnwise.rollout.settings import RolloutConfig
from turnwise.rollout.tasks import alternate_players
from turnwise.run.build import PolicyStack, build_engine
from turnwise.run.build_parts import Parts
from turnwise.run.environment_mix import EnvironmentMix
from turnwise.run.load_policy import model_loader
from turnwise.training.selfplay import FrozenPolicy, Ladder, Opponents, Snapshots


def build_selfplay(built: Parts) -> tuple[GroupCollector, Opponents | None]:
    """Return the collector of training episodes, and the opponents if the run has any."""
    config, run, stack, loaded = built.config, built.run, built.stack, built.loaded
    settings = config.selfplay.opponent
    if not isinstance(settings, PolicyOpponent):
        return stack.collector, None
    past, games = isinstance(settings, PastPolicy), settings.ladder_games
    frozen = None
    if settings.plays_snapshots:
        frozen = build_frozen_policy(config.model, config.engine, config.rollout, loaded, stack)
    ladder = None
    if frozen is not None and games:
        against = match_collector(stack, run.environments, frozen.engine)
        ladder = Ladder(collector=against, tasks=alternate_players(run.tasks.first_tasks("validation", games)))
    opponents = Opponents(
        snapshots=Snapshots(
            run.folder.past, every=settings.snapshot_every, keep=settings.snapshots, tokenizer=loaded.tokenizer
        ),
        frozen=frozen,
        trained_against=past,
        ladder=ladder,
        learner=built.learner,
        run_seed=config.seed,
        checkpoints=built.checkpoints,
        folder=run.folder,
        progress=run.progress,
    )
    return match_collector(stack, run.environments, frozen.engine if frozen is not None and past else None), opponents


def build_frozen_policy(
    model: ModelConfig, engine: EngineSettings, rollout: RolloutConfig, loaded: LoadedModel, stack: PolicyStack
) -> FrozenPolicy:
    """Build an engine over a copy of the model; a snapshot is loaded into it before it plays."""
    copy = copy_model(loaded.model).requires_grad_(False)
    frozen = build_engine(engine, rollout, copy, stack.renderer, pages=stack.pages)
    return FrozenPolicy(frozen, model_loader(model))


def match_collector(stack: PolicyStack, environments: EnvironmentMix, opponent: Policy | None) -> MatchCollector:
    """Build a collector of matches with the settings of the training collector."""
    training = stack.collector
    assert isinstance(training, Collector), "check_conflicts rejects self-play on a cluster"
    return MatchCollector(
        policy=training.policy,
        opponent=opponent,
        make_match=lambda task, member, attempt: make_selfplay_envs(
            environments.specs[task.env], task, member, attempt
        ),
        context=training.context,
        limits=training.limits,
        in_flight=training.in_flight,
        attempts=training.attempts,
        run_seed=training.run_seed,
    )
