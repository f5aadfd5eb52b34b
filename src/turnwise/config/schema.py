"""All settings with their defaults and help texts: the sections of environment and model, and the tree of all."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from turnwise.algos.critics import CRITICS, CriticSettings, TrunkCriticSettings
from turnwise.config.algorithm import AlgoConfig, RewardConfig
from turnwise.config.recording import CheckpointConfig, DiagnoseConfig, EvalConfig, RecordConfig
from turnwise.config.resources import ClusterConfig, SystemConfig
from turnwise.config.rollouts import CurriculumConfig, RolloutConfig, SelfPlayConfig
from turnwise.config.training import DataConfig, SftConfig, TrainConfig
from turnwise.engine.engines import ENGINES, EngineSettings, Native
from turnwise.envs.agent.settings import AGENT_ENV, AGENTS, AgentSettings, CallersAgent, starts_agent
from turnwise.models.loading.catalogue import SMOLLM2_VISION, WARMED_UP
from turnwise.rollout.context_settings import CONTEXTS, ContextSettings, Full, Summary
from turnwise.settings.choice import OneOf
from turnwise.settings.needs import (
    AGENT,
    CRITIC,
    ENVIRONMENT,
    LOCAL_EPISODES,
    ONE_ENVIRONMENT,
    WARM_UP,
    WHOLE_CONTEXT,
    Lack,
    Need,
)
from turnwise.settings.section import Idle, Section, Seed, is_plain


class MixedEnv(Section):
    """Entry of `env.mix`."""

    kind: str
    """Name of a built-in environment, or FILE.py:Class; default: the entry's name."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Tasks of this environment for each task of env.kind."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Parameters of this environment."""


NO_ENV = "none"
"""`env.kind` of SFT without an environment."""


class EnvConfig(Section):
    """Environment, its parameters, and environments to mix in."""

    kind: str = "frozen_lake"
    """Name of a built-in environment, or FILE.py:Class; "none" (SFT only): no environment; "agent": see agent."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Parameters of the environment; `turnwise envs NAME` lists them."""
    mix: dict[str, Any] = Field(default_factory=dict)
    """Further environments by name: a weight (env.kind has 1), or a table of kind, weight and params."""

    @model_validator(mode="before")
    @classmethod
    def gather_params(cls, table: Any) -> Any:
        """Move keys of the table that are not fields into `params`."""
        if not isinstance(table, dict) or not isinstance(table.get("params", {}), dict):
            return table
        known = {name: value for name, value in table.items() if name in cls.model_fields}
        params = {name: value for name, value in table.items() if name not in known}
        return known | {"params": params | known.get("params", {})} if params else table

    def mixed(self) -> dict[str, MixedEnv]:
        """Return the entries of `mix`. A name that is not an environment's needs a kind."""
        tables = {name: entry if isinstance(entry, dict) else {"weight": entry} for name, entry in self.mix.items()}
        return {name: MixedEnv.model_validate({"kind": name, **table}) for name, table in tables.items()}

    @model_validator(mode="after")
    def check_agent_alone(self) -> "EnvConfig":
        if self.kind == AGENT_ENV and self.mix:
            raise ValueError("env.mix adds environments, and an agent trains on its own tasks alone. Remove env.mix.")
        return self

    def needs(self) -> list[Need]:
        if self.kind != AGENT_ENV:
            return []
        return [
            Need(WHOLE_CONTEXT, "An agent decides itself what it sends to the model"),
            Need(LOCAL_EPISODES, "An agent runs beside an engine in this process"),
        ]

    def lacks(self) -> dict[str, Lack]:
        is_agent = self.kind == AGENT_ENV
        missing, fix = (
            (ENVIRONMENT, "set env.kind to an environment")
            if is_agent
            else (AGENT, "set agent.command or agent.function")
        )
        lacks = {missing: Lack(f"env.kind {self.kind}", "is not one" if is_agent else "is an environment", fix)}
        if self.mix:
            lacks[ONE_ENVIRONMENT] = Lack("env.mix", "adds others", "leave out env.mix")
        return lacks

    @field_validator("mix")
    @classmethod
    def check_mix(cls, mix: dict[str, Any]) -> dict[str, Any]:
        try:
            cls.model_construct(mix=mix).mixed()
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(
                f"env.mix has {'.'.join(map(str, first['loc']))} = {first['input']!r} ({first['msg']}): give each "
                "environment a weight above 0, or a table of kind, weight and params"
            ) from None
        return mix

    @field_validator("params", "mix")
    @classmethod
    def check_plain(cls, params: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        for name, value in params.items():
            if not is_plain(value):
                raise ValueError(
                    f"env.{info.field_name}.{name} = {value!r} must be text, a finite number, true, false, none, "
                    "or a list or table of these, so that config.toml can store it"
                )
        return params


class ModelConfig(Section):
    """Policy model."""

    name: str = "tiny"
    """"tiny", "tiny_vlm", "smollm2-135m", "smollm2-135m-vision", a Hugging Face name or folder, or a GGUF file."""
    device: str = "auto"
    """"auto", "cpu" or "cuda"."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Data type of the parameters; auto: float32 on CPU, bfloat16 with float32 master weights on GPU."""
    chat_template: str | None = None
    """Jinja file with a chat template, for tokenizers without one."""
    train_vision: bool | None = None
    """Train the vision tower and its projection too; none: only that of smollm2-135m-vision, which is untrained."""
    warmup_steps: Annotated[int, Field(ge=0)] = 60
    """tiny, tiny_vlm: steps on random actions; before images 2 x as many on boards, smollm2-135m-vision 8 x."""

    def idle(self) -> Idle:
        names = (*WARMED_UP, SMOLLM2_VISION)
        needless = (f"model.name {self.name}", f"choose {', '.join(names)}")
        return {} if self.name in names else {"warmup_steps": needless}

    def lacks(self) -> dict[str, Lack]:
        if self.name not in WARMED_UP:
            return {WARM_UP: Lack(f"model.name {self.name}", "has none", f"choose {', '.join(WARMED_UP)}")}
        if not self.warmup_steps:
            return {WARM_UP: Lack("model.warmup_steps 0", "has none", "raise model.warmup_steps")}
        return {}


class LoraConfig(Section):
    """LoRA adapter, trained in place of the model's own weights."""

    rank: Annotated[int, Field(ge=0)] = 0
    """LoRA rank; 0 trains all weights."""
    alpha: Annotated[float, Field(gt=0)] | None = None
    """LoRA scaling numerator: updates are scaled by alpha / rank; none uses 2 x rank."""
    targets: tuple[str, ...] = ()
    """Names of the layers that get an adapter, such as q_proj; default: every linear layer but the head."""
    part: Literal["language", "vision", "both"] | None = None
    """Part of a model that reads images; none: language, and vision too if model.train_vision trains it."""

    def idle(self) -> Idle:
        return {} if self.rank else dict.fromkeys(("alpha", "targets", "part"), ("lora.rank 0", "raise lora.rank"))


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
    """Critic, for advantages and estimators that need one: a model or a head for tokens, or one for utterances."""
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
