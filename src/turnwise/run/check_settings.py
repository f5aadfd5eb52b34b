"""Check the settings of a run against each other, from what each section says that it needs, lacks and uses.

What one section can check by itself is checked when it is built. Here are also the few numbers of two sections that
must fit together.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from turnwise.algos.critics import UtteranceCriticSettings
from turnwise.algos.estimators import ActingEstimator, ArcherSettings
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.envs.agent.harness import Harness
from turnwise.envs.agent.settings import AGENT_ENV, StartedAgent
from turnwise.models.loading.catalogue import WARMED_UP
from turnwise.models.loading.model_files import is_adapter
from turnwise.rollout.opponents import CurrentPolicy
from turnwise.run.build_context import check_context
from turnwise.run.setting_names import check_model_name
from turnwise.settings.needs import AGENT, Lack, explain_missing, explain_unused
from turnwise.settings.section import Section


def check_settings_fit(config: Config, override_keys: Iterable[str] = ()) -> None:
    """Raise UserError for a need that nothing provides, numbers that do not fit, or an override without effect."""
    lacks = missing_capabilities(config)
    for _, section in sections_in_use(config):
        for need in section.needs():
            if need.capability in lacks:
                raise UserError(explain_missing(need, lacks[need.capability]))
    for check in (
        check_model_name,
        check_context,
        _check_agent,
        _check_step_sizes,
        _check_critic_warmup,
        _check_selfplay,
        _check_lora,
    ):
        check(config)
    for key in override_keys:
        check_is_used(config, key.replace("-", "_"), lacks)


def sections_of(section: Section, path: str = "") -> Iterator[tuple[str, Section]]:
    """Yield a section and those in it, with the alternatives that are chosen, each with its dotted name."""
    yield path, section
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from sections_of(value, f"{path}.{name}" if path else name)


def sections_in_use(config: Config) -> Iterator[tuple[str, Section]]:
    """Yield the sections without those that have no effect, such as algo.advantage with ArCHer."""
    sections = dict(sections_of(config))
    for path, section in sections.items():
        parent, _, name = path.rpartition(".")
        if not path or name not in sections[parent].idle():
            yield path, section


def missing_capabilities(config: Config) -> dict[str, Lack]:
    lacks = {capability: lack for _, section in sections_in_use(config) for capability, lack in section.lacks().items()}
    if isinstance(config.agent, Harness):  # an agent that plays the tasks of an environment
        lacks.pop(AGENT, None)
    return lacks


def check_is_used(config: Config, key: str, lacks: dict[str, Lack]) -> None:
    """Raise UserError if the setting has no effect with this configuration."""
    sections, parts = dict(sections_of(config)), key.split(".")
    for depth, name in enumerate(parts):
        section = sections.get(".".join(parts[:depth]))
        if section is None:
            break
        if name in section.idle():
            cause, fix = section.idle()[name]
            raise UserError(f"{key} has no effect with {cause}. Remove it, or {fix}.")
        used = section.uses.get(name, ())
        for capability in (used,) if isinstance(used, str) else used:
            if capability in lacks:
                raise UserError(explain_unused(key, lacks[capability]))


def _check_agent(config: Config) -> None:
    if isinstance(config.agent, StartedAgent) and config.env.kind != AGENT_ENV:
        raise UserError(
            f"env.kind {config.env.kind} is an environment, which agent.command or agent.function replaces. Remove "
            "one of them."
        )
    if config.sft.demos is not None:
        raise UserError(
            f"sft.demos {config.sft.demos} is a setting of `turnwise sft`. Resume such a run with `turnwise sft "
            "--resume RUN`, or train its model with model.name RUN."
        )


def _check_step_sizes(config: Config) -> None:
    """Check the numbers of tasks and trajectories of a step."""
    rollout, mini_batch, estimator = config.rollout, config.train.mini_batch, config.algo.estimator
    episodes, tasks = rollout.groups * rollout.group_size, rollout.groups * (1 + config.algo.filter.refill_rounds)
    updates = config.critic.updates if isinstance(config.critic, UtteranceCriticSettings) else 0
    if isinstance(estimator, ActingEstimator) and estimator.states < updates:
        raise UserError(
            f"algo.estimator.states {estimator.states} is less than critic.updates {updates}: some updates would have "
            f"no state to train V at. Set algo.estimator.states to at least {updates}."
        )
    if isinstance(estimator, ArcherSettings):
        if mini_batch > estimator.states:
            raise UserError(
                f"train.mini_batch {mini_batch} is more than the utterances of a step, algo.estimator.states "
                f"{estimator.states}. Set train.mini_batch to at most {estimator.states}."
            )
    elif mini_batch > episodes:
        raise UserError(
            f"train.mini_batch {mini_batch} is more than the trajectories of a step, rollout.groups {rollout.groups} x "
            f"rollout.group_size {rollout.group_size}. Set train.mini_batch to at most {episodes}."
        )
    if 0 < config.curriculum.pool < tasks:
        raise UserError(
            f"curriculum.pool {config.curriculum.pool} has fewer tasks than a step may draw: rollout.groups "
            f"{rollout.groups} in each of 1 + algo.filter.refill {config.algo.filter.refill_rounds} rounds. Set "
            f"curriculum.pool to at least {tasks}."
        )


def _check_critic_warmup(config: Config) -> None:
    warmup, steps = config.critic.warmup_steps, config.train.steps
    if config.algo.has_any_critic and warmup >= steps:
        raise UserError(
            f"critic.warmup_steps {warmup} takes all of train.steps {steps}, so the policy would never be trained. Set "
            f"critic.warmup_steps below {steps}."
        )


def _check_selfplay(config: Config) -> None:
    if not isinstance(config.selfplay.opponent, CurrentPolicy):
        return
    if config.rollout.groups % 2 == 1:
        raise UserError(
            "selfplay.opponent self trains both players of a match, one group each, and rollout.groups "
            f"{config.rollout.groups} is odd. Set rollout.groups to an even number."
        )
    if config.rollout.in_flight < 2:
        raise UserError(
            "selfplay.opponent self runs both players of a match at once. Raise rollout.in_flight to 2 or more."
        )


def _check_lora(config: Config) -> None:
    name = config.model.name
    if config.lora.rank > 0 and name in WARMED_UP and not config.model.warmup_steps:
        raise UserError(
            f"lora.rank trains an adapter for a base model that is saved, and {name} without a warm-up is not saved. "
            "Set model.warmup_steps 60, for example."
        )
    if config.lora.rank > 0 and is_adapter(Path(name).expanduser()):
        raise UserError(f"model.name {name} is already an adapter, which training continues. Remove lora.rank.")
