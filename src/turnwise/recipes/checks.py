"""What must hold before anything starts, where it takes knowing which algorithms and environments exist."""

from collections.abc import Iterable

from turnwise.algos.advantages import ADVANTAGES
from turnwise.algos.aggregation import AGGREGATIONS
from turnwise.algos.losses import LOSSES
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.core.names import nearest


def check(config: Config) -> None:
    """Refuses names that do not exist and combinations that make no sense, with the reason."""
    algo = config.algo
    _known("algo.advantage", algo.advantage, ADVANTAGES)
    _known("algo.loss", algo.loss, LOSSES)
    _known("algo.aggregation", algo.aggregation, AGGREGATIONS)
    advantage = ADVANTAGES[algo.advantage]
    if advantage.needs_groups and config.rollout.group_size < 2:
        raise UserError(
            f"algo.advantage {algo.advantage} compares the members of a group, and rollout.group_size is 1: "
            "raise it, or choose gae"
        )
    if algo.truncated == "bootstrap" and not advantage.needs_critic:
        raise UserError(
            f"algo.truncated bootstrap takes the critic's value, and algo.advantage {algo.advantage} has no critic: "
            "choose zero or drop, or gae"
        )
    if config.train.mini_batch > config.rollout.groups * config.rollout.group_size:
        raise UserError(
            f"train.mini_batch {config.train.mini_batch} is more than the "
            f"{config.rollout.groups * config.rollout.group_size} trajectories of a step: lower it"
        )


def _known(key: str, name: str, options: Iterable[str]) -> None:
    if name not in options:
        raise UserError(f'unknown {key} "{name}":{nearest(name, options)}')
