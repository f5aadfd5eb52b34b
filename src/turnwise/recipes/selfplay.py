"""From a configuration to self-play: who sits on the other side, and the ladder of a run's own past."""

from turnwise.config.schema import Config
from turnwise.core.protocols import Policy
from turnwise.envs.games.selfplay import make_selfplay_envs
from turnwise.models.layers import copy_model
from turnwise.models.loading.load import LoadedModel
from turnwise.recipes.build import Players, build_engine, model_loader
from turnwise.recipes.environment_mix import Worlds
from turnwise.record.run_folder import RunFolder
from turnwise.report.progress import Progress
from turnwise.rollout.collect import GroupCollector
from turnwise.rollout.selfplay import MatchCollector, sided
from turnwise.rollout.tasks import TaskSource
from turnwise.training.checkpoints import Checkpoints
from turnwise.training.selfplay import Frozen, Ladder, Rivals, Snapshots


def build_selfplay(
    config: Config,
    worlds: Worlds,
    tasks: TaskSource,
    loaded: LoadedModel,
    players: Players,
    checkpoints: Checkpoints,
    folder: RunFolder,
    progress: Progress,
) -> tuple[GroupCollector, Rivals | None]:
    """What collects the training episodes, and the rivals where there are some."""
    settings = config.selfplay
    if settings.opponent == "none":
        return players.collector, None
    past, games = settings.opponent == "past", settings.ladder_games
    frozen = frozen_player(config, loaded, players) if past or games else None
    ladder = None
    if frozen is not None and games:
        against = match_collector(players, worlds, frozen.engine)
        ladder = Ladder(collector=against, tasks=sided(tasks.held_out("validation", games)))
    rivals = Rivals(
        snapshots=Snapshots(
            folder.past, every=settings.snapshot_every, keep=settings.snapshots, tokenizer=loaded.tokenizer
        ),
        frozen=frozen,
        trained_against=past,
        ladder=ladder,
        model=loaded.model,
        run_seed=config.seed,
        checkpoints=checkpoints,
        folder=folder,
        progress=progress,
    )
    return match_collector(players, worlds, frozen.engine if frozen is not None and past else None), rivals


def frozen_player(config: Config, loaded: LoadedModel, players: Players) -> Frozen:
    """A copy of the model, with an engine of its own; whose weights it holds is said before it plays."""
    model = copy_model(loaded.model).requires_grad_(False)
    engine = build_engine(config, model, players.renderer, pages=players.pages)
    return Frozen(model, engine, model_loader(config))


def match_collector(players: Players, worlds: Worlds, opponent: Policy | None) -> MatchCollector:
    """The training collector's settings, for matches."""
    plain = players.collector
    return MatchCollector(
        policy=plain.policy,
        opponent=opponent,
        make_seats=lambda task, member, attempt: make_selfplay_envs(worlds.kinds[task.env], task, member, attempt),
        context=plain.context,
        limits=plain.limits,
        in_flight=plain.in_flight,
        attempts=plain.attempts,
        run_seed=plain.run_seed,
    )
