"""What is asked before a run starts: its settings, what they name, and the servers of its tools and judges."""

import asyncio
import logging
import os
import resource
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from turnwise.algos.advantages import ADVANTAGES
from turnwise.algos.filters import FILTERS, SCORES
from turnwise.algos.losses import AGGREGATIONS, LOSSES
from turnwise.algos.off_policy import CORRECTIONS
from turnwise.algos.rewards import NORMALISERS
from turnwise.config.schema import Config, ModelConfig, SystemConfig
from turnwise.core.errors import UserError
from turnwise.core.suggestions import suggest
from turnwise.engine.engines import ENGINES
from turnwise.envs.games.env import GameEnv
from turnwise.envs.registry import load_function
from turnwise.envs.spec import EnvSpec
from turnwise.envs.text_env import TextEnv, params_model
from turnwise.envs.tool_env import ToolEnv
from turnwise.models.loading.catalogue import model_names
from turnwise.models.loading.hub import is_hub_name
from turnwise.models.loading.load import resolve_device
from turnwise.models.loading.lora import is_adapter
from turnwise.recipes.build import kl_in_reward, token_rule
from turnwise.recipes.contexts import check_context
from turnwise.recipes.environment_mix import EnvironmentMix, build_environment_mix
from turnwise.recipes.sources import use_own_adapter
from turnwise.recipes.unused_settings import check_setting_is_used
from turnwise.record.trackers import check_trackers
from turnwise.rewards.factory import build_group_judges
from turnwise.rewards.functions import trajectory_reward
from turnwise.rewards.judge.registry import JudgeRegistry
from turnwise.rewards.scoring import ENV, FORMAT
from turnwise.tools.tool import NeedsServer

SILENCE_S = 3.0
"""Then it is said what is waited for: the first start of a server may be a download."""

log = logging.getLogger(__name__)


def check_run(
    config: Config, kind: EnvSpec | None = None, given: Iterable[str] = (), *, resume: bool = False
) -> EnvironmentMix:
    """The worlds of a run that can start. `kind`, `given`: as `build_environment_mix` and `check` take them."""
    if resume and config.record.name is not None:
        config = use_own_adapter(config, Path(config.record.folder) / config.record.name)
    worlds = build_environment_mix(config, kind)
    judges = JudgeRegistry()
    for each in worlds.kinds.values():
        check(config, each, given, judges)
    check_servers(worlds.with_params, judges=judges.clients)
    return worlds


def check_servers(worlds: Iterable[tuple[EnvSpec, Mapping[str, Any]]], judges: Sequence[NeedsServer] = ()) -> None:
    """Asks each server once, all at the same time; whoever uses none waits for nothing."""
    needed = [*judges]
    for kind, params in worlds:
        if issubclass(kind.cls, ToolEnv):
            needed += kind.cls.servers(params_model(kind.cls).model_validate(dict(params)))
    if needed:
        asyncio.run(_ask(needed))


async def _ask(needed: Sequence[NeedsServer]) -> None:
    """waits for: every server's answer. unblocked by: they, their time-outs, the first that is not there."""
    asked = [asyncio.ensure_future(each.check_server()) for each in needed]
    _, late = await asyncio.wait(asked, timeout=SILENCE_S, return_when=asyncio.FIRST_EXCEPTION)
    if late and not any(each.done() and each.exception() for each in asked):
        log.info("waiting until the servers of the tools and judges are there")
    await asyncio.gather(*asked)


MIN_THREADS = 256
"""Number of threads that may be set on any machine whose process limit allows it."""
PIDS_MAX = Path("/sys/fs/cgroup/pids.max")

NAMES: dict[str, Iterable[str]] = {
    "advantage": ADVANTAGES,
    "loss": LOSSES,
    "correction": CORRECTIONS,
    "normalise": NORMALISERS,
    "filter": FILTERS,
    "filter_by": SCORES,
    "aggregation": AGGREGATIONS,
}


def check(
    config: Config, kind: EnvSpec | None = None, given: Iterable[str] = (), judges: JudgeRegistry | None = None
) -> None:
    """Refuses names that do not exist and combinations that make no sense, with the reason.

    `kind`: the environment, where it is known; `given`: the keys that a person typed, which must have an effect.
    """
    check_context(config)
    check_model(config.model)
    check_threads(config.system)
    check_trackers(config.record.trackers)
    for name, options in NAMES.items():
        chosen = getattr(config.algo, name)
        if chosen not in options:
            raise UserError(f'unknown algo.{name} "{chosen}":{suggest(chosen, options)}')
    if config.engine.kind not in ENGINES:
        raise UserError(f'unknown engine.kind "{config.engine.kind}":{suggest(config.engine.kind, ENGINES)}')
    for test, complaint in COMBINATIONS:
        if test(config):
            raise UserError(complaint.format(**dict(config)))
    for key in given:
        check_setting_is_used(config, key)
    for rule in (config.algo.loss_tokens, config.algo.advantage_tokens):
        token_rule(rule)
    for function in config.reward.functions:
        trajectory_reward(load_function(function, "reward.functions"))
    build_group_judges(config.reward.judges, judges or JudgeRegistry(), decode=str, taken=_reward_names(config))
    if kind is not None and _plays_itself(config):
        _check_game(config, kind)
    if kind is not None and ADVANTAGES[config.algo.advantage].needs_states and _without_states(kind):
        raise UserError(
            f"algo.advantage {config.algo.advantage} compares turns that acted in the same state, and {kind.name} has "
            "no state_key(): give it one, or choose grpo or turn_grpo"
        )


def _check_game(config: Config, kind: EnvSpec) -> None:
    """Whether the two sides of this environment can be played against each other."""
    given = f"selfplay.opponent {config.selfplay.opponent}"
    if not issubclass(kind.cls, GameEnv):
        raise UserError(
            f"{given} needs a game of two sides, and {kind.name} is none: choose tic_tac_toe or connect_four, or leave "
            "it out"
        )
    params = kind.check_params(config.env.params)
    if params["begins"] != "random":
        raise UserError(f"env.params.begins fixes a side, and {given} trains both: leave one of the two out")
    if params["max_actions_per_turn"] != 1:
        raise UserError(
            f"env.params.max_actions_per_turn: with {given} the other side moves after each action: set it to 1"
        )


def check_model(model: ModelConfig) -> None:
    """What can be said of it before anything is read or downloaded."""
    resolve_device(model.device)
    if model.chat_template is not None and not Path(model.chat_template).expanduser().is_file():
        raise UserError(f"model.chat_template: no file {model.chat_template}: give a Jinja file")
    known = model.name in model_names() or (model.name and Path(model.name).expanduser().exists())
    if not known and Path(model.name).is_absolute():
        raise UserError(f"model.name: {model.name} does not exist: put it back if it was moved, or check the path")
    if not known and (not is_hub_name(model.name) or model.name.endswith(".gguf")):
        raise UserError(
            f'unknown model "{model.name}":{suggest(model.name, model_names())} '
            "(or give a hub name (owner/name), or a folder or .gguf file that exists)"
        )


def check_threads(system: SystemConfig) -> None:
    if system.threads > (most := most_threads()):
        raise UserError(
            f"system.threads {system.threads}: this machine allows at most {most}: "
            f"set it to {default_threads()}, or raise the limit on processes"
        )


def cores() -> int:
    return os.cpu_count() or 1


def default_threads() -> int:
    """Return the number of threads that system.threads 0 stands for."""
    return min(cores(), most_threads())


def most_threads() -> int:
    """Return the largest number of threads that a run may ask for.

    More than there are cores: results depend on the number, so a run that is resumed on a smaller machine keeps it.
    At most half of the processes that the user or the container may have: OpenMP crashes where it cannot start one.
    """
    allowed = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    limits = [allowed] if allowed != resource.RLIM_INFINITY else []
    with suppress(OSError, ValueError):  # no cgroup here, or its limit is "max"
        limits.append(int(PIDS_MAX.read_text()))
    return max(1, min([max(MIN_THREADS, 4 * cores()), *(limit // 2 for limit in limits)]))


def _without_states(kind: EnvSpec) -> bool:
    return kind.cls.state_key is TextEnv.state_key


def _ranks_by_spread(config: Config) -> bool:
    return config.algo.filter != "none" and config.algo.filter_by in ("reward_std", "entropy_std")


def _normalises_in_groups(config: Config) -> bool:
    return config.algo.normalise != "identity" and config.algo.normalise_over == "group"


def _plays_itself(config: Config) -> bool:
    return config.selfplay.opponent != "none"


def _compares_attempts(config: Config) -> bool:
    return any(judge.get("mode") in ("relative", "pairwise") for judge in config.reward.judges)


def _reward_names(config: Config) -> list[str]:
    return [function.rpartition(":")[2] for function in config.reward.functions]


COMBINATIONS: tuple[tuple[Callable[[Config], bool], str], ...] = (
    (
        lambda c: ADVANTAGES[c.algo.advantage].needs_groups and c.rollout.group_size < 2,
        "algo.advantage {algo.advantage} compares the members of a group, and rollout.group_size is 1: "
        "raise it, or choose gae or reinforce_pp",
    ),
    (
        lambda c: _ranks_by_spread(c) and c.rollout.group_size < 2,
        "algo.filter_by {algo.filter_by} compares the members of a group, and rollout.group_size is 1: raise it, or "
        "choose another score",
    ),
    (
        lambda c: c.reward.combine == "each" and c.rollout.group_size < 2,
        "reward.combine each compares the members of a group, and rollout.group_size is 1: raise it, or choose sum",
    ),
    (
        lambda c: _normalises_in_groups(c) and c.rollout.group_size < 2,
        "algo.normalise {algo.normalise} over a group of 1 makes every return 0: raise rollout.group_size, or choose "
        "algo.normalise_over batch",
    ),
    (
        lambda c: _compares_attempts(c) and c.rollout.group_size < 2,
        "reward.judges with mode relative or pairwise compare the members of a group, and rollout.group_size is 1: "
        "raise it, or choose mode absolute",
    ),
    (
        lambda c: _compares_attempts(c) and ADVANTAGES[c.algo.advantage].needs_greedy,
        "algo.advantage {algo.advantage} scores a greedy member alone, and reward.judges with mode relative or "
        "pairwise compare members of a group: choose mode absolute, or another advantage",
    ),
    (
        lambda c: ADVANTAGES[c.algo.advantage].needs_greedy and c.algo.normalise != "identity",
        "algo.advantage {algo.advantage} subtracts the greedy episode's return, which is not normalised, and "
        "algo.normalise {algo.normalise} would compare returns in other units: leave it out",
    ),
    (
        lambda c: ADVANTAGES[c.algo.advantage].needs_greedy and c.reward.combine != "sum",
        "algo.advantage {algo.advantage} subtracts the greedy episode's return, which is not normalised, and "
        "reward.combine {reward.combine} would compare returns in other units: choose sum",
    ),
    (
        lambda c: c.algo.filter == "top_count" and (c.algo.filter_value < 1 or c.algo.filter_value % 1 != 0),
        "algo.filter top_count keeps algo.filter_value groups, and {algo.filter_value} is not a number of groups: give "
        "a whole number of 1 or more, or choose top_k for a share",
    ),
    (
        lambda c: c.algo.correction_low > c.algo.correction_high,
        "algo.correction_low {algo.correction_low} is above algo.correction_high {algo.correction_high}: nothing would "
        "be trained",
    ),
    (
        lambda c: ADVANTAGES[c.algo.advantage].needs_critic and c.critic.warmup_steps >= c.train.steps,
        "critic.warmup_steps {critic.warmup_steps} leaves the policy none of train.steps {train.steps}: lower it",
    ),
    (
        lambda c: 0 < c.curriculum.pool < c.rollout.groups * (1 + c.algo.filter_refill),
        "curriculum.pool {curriculum.pool} holds fewer tasks than a step may draw, rollout.groups {rollout.groups} for "
        "each of 1 + algo.filter_refill {algo.filter_refill} rounds: raise it",
    ),
    (
        lambda c: _plays_itself(c) and bool(c.env.mix),
        "selfplay.opponent {selfplay.opponent} trains one game, and env.mix adds others: leave one of the two out",
    ),
    (
        lambda c: _plays_itself(c) and c.curriculum.pool > 0,
        "curriculum.pool ranks tasks by how often they are solved, and with selfplay.opponent {selfplay.opponent} that "
        "is the opponent's doing: leave one of the two out",
    ),
    (
        lambda c: _plays_itself(c) and ADVANTAGES[c.algo.advantage].needs_greedy,
        "algo.advantage {algo.advantage} plays a greedy member more, whose match would have no other side with "
        "selfplay.opponent {selfplay.opponent}: choose another",
    ),
    (
        lambda c: c.selfplay.opponent == "self" and c.rollout.groups % 2 == 1,
        "selfplay.opponent self plays both sides of a match, a group each, and rollout.groups {rollout.groups} is odd: "
        "make it even",
    ),
    (
        lambda c: c.selfplay.opponent == "self" and c.rollout.in_flight < 2,
        "selfplay.opponent self needs both sides of a match at once: raise rollout.in_flight to 2 or more",
    ),
    (
        lambda c: c.sft.demos is not None,
        "sft.demos {sft.demos} is what `turnwise sft` imitates: go on with such a run by turnwise sft --resume RUN, or "
        "train its model with --model.name RUN",
    ),
    (
        lambda c: c.lora.rank > 0 and c.model.name == "tiny" and not c.model.warmup_steps,
        "lora.rank puts an adapter beside a model that others can load, and tiny without its warm-up is kept nowhere: "
        "raise model.warmup_steps",
    ),
    (
        lambda c: c.lora.rank > 0 and is_adapter(Path(c.model.name).expanduser()),
        "model.name {model.name} is an adapter, which is trained further: leave out lora.rank",
    ),
    (
        lambda c: c.diagnose.rollback and not c.diagnose.alarms,
        "diagnose.rollback answers alarms, and diagnose.alarms is false: turn them on",
    ),
    (
        lambda c: len(set(_reward_names(c))) < len(_reward_names(c)) or bool({ENV, FORMAT} & set(_reward_names(c))),
        'reward.functions are told apart by their names, which must differ, and "env" and "format" are taken: '
        "rename one",
    ),
    (
        lambda c: max(c.train.betas) >= 1,
        "train.betas must be below 1, where AdamW still takes gradients in: lower them",
    ),
    (
        lambda c: c.algo.clip_low > 1 and c.algo.loss in ("ppo", "gspo", "cispo", "clip_cov"),
        "algo.clip_low {algo.clip_low} bounds the ratio below 0, where it never is: give at most 1, which is no bound",
    ),
    (
        lambda c: c.train.epochs > 1 and c.algo.loss in ("reinforce", "gpg"),
        "algo.loss {algo.loss} has no ratio to the policy that sampled, which only the first pass trains: set "
        "train.epochs to 1, or choose ppo",
    ),
    (
        lambda c: c.algo.truncated == "bootstrap" and not ADVANTAGES[c.algo.advantage].needs_critic,
        "algo.truncated bootstrap takes the critic's value, and algo.advantage {algo.advantage} has no critic: "
        "choose zero or drop, or gae",
    ),
    (
        lambda c: c.train.mini_batch > c.rollout.groups * c.rollout.group_size,
        "train.mini_batch {train.mini_batch} is more than the trajectories of a step, rollout.groups {rollout.groups} "
        "x rollout.group_size {rollout.group_size}: lower it",
    ),
    (
        lambda c: c.algo.filter_refill > 0 and c.algo.filter != "absolute",
        "algo.filter_refill rolls out until enough groups pass a bound, and algo.filter {algo.filter} ranks groups "
        "against each other: choose algo.filter absolute, or leave it out",
    ),
    (
        lambda c: c.algo.kl_target is not None and c.algo.kl_coef == 0,
        "algo.kl_target moves the weight of the KL, and algo.kl_coef is 0: give it a value to start from",
    ),
    (
        lambda c: c.algo.kl_coef > 0 and not kl_in_reward(c.algo) and c.algo.kl_estimator == "k1",
        "algo.kl_estimator k1 has no gradient on average, so it does nothing in the loss: choose k2 or k3, or "
        "algo.kl_in reward",
    ),
    (
        lambda c: c.algo.correction in ("decoupled", "truncated", "masked") and c.algo.old_logprobs == "sampler",
        "algo.correction {algo.correction} weighs by the learner's probability over the sampler's, and "
        "algo.old_logprobs sampler makes them one: choose algo.old_logprobs learner",
    ),
    (
        lambda c: (c.algo.reject != "none" or c.algo.reject_veto > 0) and c.algo.old_logprobs == "sampler",
        "algo.reject and algo.reject_veto compare the learner's probability with the sampler's, and algo.old_logprobs "
        "sampler makes them one: choose algo.old_logprobs learner",
    ),
    (
        lambda c: c.algo.reject_low > c.algo.reject_high,
        "algo.reject_low {algo.reject_low} is above algo.reject_high {algo.reject_high}: everything would be rejected",
    ),
    (
        lambda c: (
            c.algo.reject in ("turn", "sequence") and c.algo.reject_pool == "max" and c.algo.reject_statistic == "ratio"
        ),
        "algo.reject_pool max overlooks ratios below 1: choose algo.reject_statistic k2 or k3, which grow "
        "on both sides",
    ),
    (
        lambda c: c.algo.loss == "clip_cov" and c.algo.cov_low >= c.algo.cov_high,
        "algo.cov_low {algo.cov_low} is not below algo.cov_high {algo.cov_high}: clip_cov would select nothing",
    ),
    (
        lambda c: c.algo.loss in ("clip_cov", "kl_cov") and c.algo.cov_share == 0,
        "algo.cov_share is 0, and algo.loss {algo.loss} selects a share of the tokens: raise it, or choose ppo",
    ),
    (
        lambda c: c.algo.gamma_turn == "adaptive" and not ADVANTAGES[c.algo.advantage].needs_critic,
        "algo.gamma_turn adaptive follows the critic's error, and algo.advantage {algo.advantage} has no critic: "
        "choose bi_level_gae, turn_gae or step_gae, or a number",
    ),
    (
        lambda c: c.algo.gamma_turn == "adaptive" and "gamma_turn" not in ADVANTAGES[c.algo.advantage].reads,
        "algo.advantage {algo.advantage} does not discount by turn: choose bi_level_gae, turn_gae or step_gae, or "
        "leave out algo.gamma_turn",
    ),
    (
        lambda c: len(c.reward.weights) not in (0, 1 + len(c.reward.functions)),
        "reward.weights needs one number for the environment's reward and one for each of reward.functions: "
        "give as many, or leave it out",
    ),
    (
        lambda c: c.reward.combine != "sum" and c.algo.normalise != "identity",
        "reward.combine each and process normalise already: leave out algo.normalise {algo.normalise}",
    ),
)
"""(does it hold?, what is said then)"""
