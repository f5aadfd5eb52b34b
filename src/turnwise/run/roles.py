"""Build what plays an environment with several roles: its collector, and the policies that are not trained."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from turnwise.core.errors import UserError
from turnwise.core.protocols import Env, Policy
from turnwise.core.task import Task
from turnwise.envs.param_setting import param_setting
from turnwise.envs.roles.env import SCRIPT, TRAINED, RoleRunner, open_table
from turnwise.models.loading.load import LoadedModel
from turnwise.rollout.context import Context
from turnwise.rollout.episode import Limits
from turnwise.rollout.roles import RolesCollector
from turnwise.rollout.settings import RolloutConfig
from turnwise.run.environment_mix import EnvironmentMix
from turnwise.run.find_model import resolve_model_name


def build_frozen_policies(
    environments: EnvironmentMix,
    tokenizer: Any,
    load: Callable[[str], LoadedModel],
    build: Callable[[Any], Policy],
) -> dict[str, Policy]:
    """Build an engine for each run or model that plays a role; return them by role."""
    policies: dict[str, Policy] = {}
    by_role: dict[str, Policy] = {}
    for _, params in environments.with_params:
        for role, player in params.get("players", {}).items() if environments.roles else ():
            if player in (TRAINED, SCRIPT):
                continue
            if player not in policies:
                policies[player] = build(_load_player(player, role, tokenizer, load).model.requires_grad_(False))
            by_role[role] = policies[player]
    return by_role


def _load_player(player: str, role: str, tokenizer: Any, load: Callable[[str], LoadedModel]) -> LoadedModel:
    """Load the model of a role. It reads the ids that the policy's tokenizer writes."""
    loaded = load(resolve_model_name(player))
    if loaded.tokenizer.get_vocab() != tokenizer.get_vocab():
        raise UserError(
            f"{param_setting('players')}.{role} {player} has another tokenizer than the policy. Choose a run or model "
            "with the same one."
        )
    return loaded


def build_roles_collector(
    environments: EnvironmentMix,
    policy: Policy,
    frozen: Mapping[str, Policy],
    *,
    context: Context,
    limits: Limits,
    rollout: RolloutConfig,
    run_seed: int,
) -> RolesCollector:
    def make_roles(task: Task, member: int, attempt: int) -> Iterable[tuple[str, Env]]:
        runner = environments.make(task.as_role(""), member, attempt)
        assert isinstance(runner, RoleRunner)
        return open_table(runner, task.params.get("players", {}))

    return RolesCollector(
        policy=policy,
        frozen=frozen,
        trained=environments.roles,
        make_roles=make_roles,
        context=context,
        limits=limits,
        in_flight=rollout.in_flight,
        attempts=rollout.attempts,
        run_seed=run_seed,
    )
