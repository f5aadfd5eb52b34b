"""The tree of all settings: each section is a class beside the code that it configures."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import model_validator

from turnwise.algos.critics import CRITICS, CriticSettings, TrunkCriticSettings
from turnwise.algos.settings import AlgoConfig
from turnwise.config.recording import CheckpointConfig, DiagnoseConfig, EvalConfig, RecordConfig
from turnwise.config.resources import ClusterConfig, SystemConfig
from turnwise.config.training import SftConfig, TrainConfig
from turnwise.data.settings import DataConfig
from turnwise.engine.engines import ENGINES, EngineSettings, Native
from turnwise.envs.agent.choices import AGENTS, starts_agent
from turnwise.envs.agent.settings import AGENT_ENV, AgentSettings, CallersAgent
from turnwise.envs.settings import EnvConfig
from turnwise.models.settings import LoraConfig, ModelConfig
from turnwise.rewards.settings import RewardConfig
from turnwise.rollout.context_settings import CONTEXTS, ContextSettings, Full, Summary
from turnwise.rollout.settings import CurriculumConfig, RolloutConfig, SelfPlayConfig
from turnwise.settings.choice import OneOf
from turnwise.settings.needs import (
    AGENT,
    CRITIC,
)
from turnwise.settings.section import Section, Seed


class Config(Section):
    """All settings of a run, by section. `Config(train={"steps": 50})` changes some of them."""

    uses: ClassVar[Mapping[str, str | tuple[str, ...]]] = {"agent": AGENT, "critic": CRITIC}

    seed: Seed = 0
    """Random seed of the run."""
    env: EnvConfig = EnvConfig()
    agent: Annotated[AgentSettings, OneOf(setting="agent", table=AGENTS)] = CallersAgent()
    """Agent of your own in place of an environment: a command, a function, or (none) that of a `tw.Trainer`."""
    model: ModelConfig = ModelConfig()
    lora: LoraConfig = LoraConfig()
    engine: Annotated[EngineSettings, OneOf(setting="engine", table=ENGINES, base=EngineSettings)] = Native()
    """Engine that generates the rollouts. native shares the learner's weights; others have a copy of them."""
    rollout: RolloutConfig = RolloutConfig()
    context: Annotated[ContextSettings, OneOf(setting="context", table=CONTEXTS)] = Full()
    """Earlier turns that the model sees: all, a sliding window, a memory written as text, or a summary."""
    curriculum: CurriculumConfig = CurriculumConfig()
    selfplay: SelfPlayConfig = SelfPlayConfig()
    reward: RewardConfig = RewardConfig()
    algo: AlgoConfig = AlgoConfig()
    critic: Annotated[CriticSettings, OneOf(setting="critic", table=CRITICS)] = TrunkCriticSettings()
    """Critic, for advantages and estimators that need one: a model or a head, for tokens or for utterances."""
    train: TrainConfig = TrainConfig()
    sft: SftConfig = SftConfig()
    data: DataConfig = DataConfig()
    diagnose: DiagnoseConfig = DiagnoseConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    record: RecordConfig = RecordConfig()
    system: SystemConfig = SystemConfig()
    cluster: ClusterConfig = ClusterConfig()

    @model_validator(mode="before")
    @classmethod
    def choose_agent_env(cls, settings: Any) -> Any:
        """Set env.kind to "agent" if the settings have an agent and no environment."""
        if not isinstance(settings, dict):
            return settings
        env = settings.get("env", {})
        has_agent = starts_agent(settings.get("agent"))
        return {**settings, "env": {"kind": AGENT_ENV, **env}} if has_agent and isinstance(env, dict) else settings

    @model_validator(mode="after")
    def check_prefix(self) -> "Config":
        if self.rollout.prefix and isinstance(self.context, Summary):
            raise ValueError("rollout.prefix would also start summaries: leave it empty or choose another context")
        return self

    @model_validator(mode="after")
    def check_budget(self) -> "Config":
        if self.rollout.max_new_tokens >= self.rollout.max_tokens:
            raise ValueError("rollout.max_new_tokens must be below rollout.max_tokens: raise rollout.max_tokens")
        return self
