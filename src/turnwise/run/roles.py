"""Check and build what plays an environment with several roles: its collector, and the frozen policies."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.core.protocols import Env, Policy
from turnwise.core.task import Task
from turnwise.envs.param_setting import param_setting
from turnwise.envs.roles.env import SCRIPT, TRAINED, RoleRunner, open_match
from turnwise.models.loading.load import LoadedModel
from turnwise.rollout.context import Context
from turnwise.rollout.episode import Limits
from turnwise.rollout.roles import RolesCollector
from turnwise.rollout.settings import RolloutConfig
from turnwise.run.check_settings import missing_capabilities, sections_in_use
from turnwise.run.environment_mix import EnvironmentMix
from turnwise.run.find_model import resolve_model_name
from turnwise.settings.needs import FIXED_OPPONENT, LOCAL_EPISODES, ONE_ENVIRONMENT, Lack, Need, explain_missing


def frozen_players(environments: EnvironmentMix) -> dict[str, str]:
    """Return the run or model of each role that one plays, by role."""
    players = [
        params["players"] for _, params in environments.with_params if "players" in params and environments.roles
    ]
    return {role: player for table in players for role, player in table.items() if player not in (TRAINED, SCRIPT)}


def check_roles(config: Config, environments: EnvironmentMix) -> None:
    """Check that the settings allow several roles, if the environment has them."""
    if not (roles := environments.roles):
        return
    name, lacks = environments.name, missing_capabilities(config)
    for need in (
        Need(ONE_ENVIRONMENT, f"{name} has several roles, whose episodes run together"),
        Need(LOCAL_EPISODES, f"{name} has several roles, whose episodes run in one process"),
    ):
        if need.capability in lacks:
            raise UserError(explain_missing(need, lacks[need.capability]))
    changing = Lack(f"env.kind {name}", "trains several roles at once", "set env.params.players so that it trains one")
    for _, section in sections_in_use(config):
        for need in section.needs() if len(roles) > 1 else ():
            if need.capability == FIXED_OPPONENT:
                raise UserError(explain_missing(need, changing))
    if config.rollout.groups % len(roles):
        raise UserError(
            f"{name} trains {len(roles)} roles, one group each, and rollout.groups is {config.rollout.groups}. Set it "
            f"to a multiple of {len(roles)}."
        )
    if config.rollout.in_flight < len(roles):
        raise UserError(f"{name} runs {len(roles)} roles at once. Raise rollout.in_flight to {len(roles)} or more.")


def build_frozen_policies(
    environments: EnvironmentMix,
    tokenizer: Any,
    load: Callable[[str], LoadedModel],
    build: Callable[[Any], Policy],
) -> dict[str, Policy]:
    """Build an engine for each run or model that plays roles; return them by role."""
    by_role, policies = frozen_players(environments), dict[str, Policy]()
    for role, player in by_role.items():
        if player not in policies:
            policies[player] = build(_load_player(player, role, tokenizer, load).model.requires_grad_(False))
    return {role: policies[player] for role, player in by_role.items()}


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
        return open_match(runner, task.params.get("players", {}))

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
