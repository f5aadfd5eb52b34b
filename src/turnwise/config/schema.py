"""All settings with their defaults and help texts; some are in `algorithm`, `agent` and `resources` beside it."""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from turnwise.config.agent import AGENT_ENV, AgentConfig
from turnwise.config.algorithm import AlgoConfig, ArcherConfig, CriticConfig, RewardConfig
from turnwise.config.resources import ClusterConfig, EngineConfig, SystemConfig
from turnwise.core.section import LearningRate, NonNegative, Positive, Section, Seed, Share, is_plain


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
    warmup_seed: Seed = 0
    """tiny, tiny_vlm and smollm2-135m-vision only: seed of the warm-up, and of tiny's initial weights."""


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


class RolloutConfig(Section):
    """Rollouts: episodes per step, their limits, and sampling."""

    groups: Positive = 8
    """Tasks per step."""
    group_size: Positive = 16
    """Episodes per task."""
    in_flight: Positive = 256
    """Maximum number of episodes running at the same time."""
    max_new_tokens: Positive = 64
    """Maximum number of sampled tokens per turn."""
    max_tokens: Positive = 2048
    """Maximum number of tokens of an episode's context; the last turn's budget shrinks to fit."""
    timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """Seconds per episode for its sampling, and as many for its environment; waiting for others is not counted."""
    attempts: Positive = 3
    """Attempts per episode before it is dropped, if its environment or infrastructure fails; 3 means two retries."""
    trial_s: NonNegative = 30.0
    """Seconds for trial episodes in an environment of your own, before a model is loaded; 0 skips them."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Sampling temperature in training."""
    max_staleness: Annotated[int, Field(ge=0)] = 0
    """Steps that rollouts may run ahead of training, with weights as many versions old; 0 trains synchronously."""
    stop: tuple[str, ...] = ()
    """Strings that end a turn, in addition to the model's end-of-turn token."""
    prefix: str = ""
    """Text that every answer starts with, such as "<think>"; neither sampled nor trained."""


class ContextConfig(Section):
    """Context of each turn: which earlier turns the model sees."""

    mode: Literal["full", "window", "turn", "summary"] = "full"
    """Earlier turns in the context: all, a sliding window, a memory written as text, or a summary when it is long."""
    turns: Annotated[int, Field(ge=0)] = 4
    """window: earlier turns kept besides the current one; turn: earlier turns in the memory."""
    slack: Annotated[int, Field(ge=0)] = 0
    """window: turns that it may grow beyond context.turns before it slides; a slide encodes it anew."""
    keep_opening: bool = False
    """window, turn, summary: keep the first observation, such as a question; else only the system message."""
    memory: Literal["exchanges", "actions"] = "exchanges"
    """turn: observations and actions in the memory, or actions only."""
    memory_chars: Positive = 2000
    """turn: maximum number of characters of the memory; the oldest turns are dropped first."""
    memory_rewards: bool = False
    """turn: include the environment's rewards, so that the model sees what it is trained on."""
    summary_at: Positive | None = None
    """summary: context length in tokens that triggers a summary; none uses half of rollout.max_tokens."""
    summary_every: Positive | None = None
    """summary: turns that trigger a summary at any length; none leaves it to summary_at."""
    summary_tokens: Positive = 128
    """summary: maximum number of sampled tokens of a summary."""
    summary_by: str = "model"
    """summary: "model", or FILE.py:function from the episode's messages to text."""
    summary_prompt: str = (
        "Your context will be cleared. Sum up for yourself what you need in order to go on: the goal, what you did and "
        "found, and your plan."
    )
    """summary: prompt for the model."""

    @property
    def shows_current_turn_only(self) -> bool:
        return self.mode == "turn" and self.turns == 0 and not self.keep_opening


class CurriculumConfig(Section):
    """Curriculum: training tasks drawn by how often they are solved."""

    pool: Annotated[int, Field(ge=0)] = 0
    """Training tasks per environment, drawn most often if solved sometimes; 0 disables the curriculum."""
    floor: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Probability of tasks always or never solved, relative to a task that is solved half of the time."""
    memory: Share = 0.5
    """Factor of a task's earlier results when it is played again, since the policy has changed."""


class SelfPlayConfig(Section):
    """Self-play in two-player games."""

    opponent: Literal["none", "self", "past"] = "none"
    """Opponent in training: the game's script (none), the current policy, or a past one."""
    random_moves: Annotated[int, Field(ge=0)] = 0
    """Maximum number of random moves at the start of a game in training."""
    snapshot_every: Positive = 20
    """Steps between snapshots of the policy as opponents; the first is the initial policy."""
    snapshots: Positive = 4
    """Number of latest snapshots in use; past: each step's opponent is drawn from them."""
    ladder_games: Annotated[int, Field(ge=0)] = 32
    """Games of each new snapshot against each earlier one, for its Elo rating; 0 disables ratings."""


class TrainConfig(Section):
    """Training steps, optimizer and batch sizes."""

    steps: Positive = 200
    """Training steps: each rolls out groups x group_size episodes, then updates the policy."""
    learning_rate: LearningRate = 1e-6
    """Peak learning rate of the policy."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """"muon": Muon for matrices (train.muon_learning_rate), AdamW for embeddings, norms and heads."""
    muon_learning_rate: LearningRate = 0.02
    """Learning rate of Muon; about 100 times AdamW's, since its updates are scaled differently."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate schedule after the warm-up."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps in which the learning rate rises from 0."""
    final_share: Share = 0.0
    """Final learning rate of a falling schedule, as a share of the peak."""
    weight_decay: NonNegative = 0.0
    """Weight decay."""
    betas: tuple[Share, Share] = (0.9, 0.95)
    """AdamW betas."""
    mini_batch: Positive = 32
    """Trajectories per optimizer step; the last one of a training step gets the rest."""
    epochs: Positive = 1
    """Passes over the trajectories of a step."""
    micro_tokens: Positive | None = None
    """Tokens per forward and backward pass: affects speed and memory, not the result; none chooses by device."""
    optimizer_state: Literal["auto", "device", "host"] = "auto"
    """Memory of float32 master weights and optimizer state; auto: host if the device has too little."""
    recompute: Literal["auto", "on", "off"] = "auto"
    """Activation checkpointing, at a third more compute; auto: only if memory is short."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Gradients are clipped to this norm."""
    max_minutes: Annotated[float, Field(gt=0)] | None = None
    """Minutes of warm-up and training after which the run stops, is evaluated and summarised; it can be resumed."""


class SftConfig(Section):
    """Supervised fine-tuning on demonstrations (`turnwise sft`)."""

    demos: str | None = None
    """`turnwise sft`: "solver", a run (its successful episodes), or a file of conversations."""
    count: Positive = 5000
    """Maximum number of demonstrations; the solver plays this many episodes."""
    epochs: Positive = 1
    """Passes over the demonstrations."""
    batch: Positive = 32
    """Demonstrations per step."""
    learning_rate: LearningRate = 1e-4
    """Peak learning rate of AdamW, after a warm-up; it falls to a tenth."""
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Without an environment: share of the conversations whose loss is measured instead of trained on."""
    think: bool = True
    """solver: put a true sentence about the next actions before them."""


class DataConfig(Section):
    """Stored episodes to train on instead of playing the environment (`turnwise train --data`)."""

    sources: tuple[str, ...] = ()
    """Runs, files of conversations or episodes, and dataset folders; default: the environment is played."""
    capacity: Positive = 100_000
    """Maximum number of episodes; the newest are kept."""
    episodes: Literal["training", "evaluation", "all"] = "training"
    """Episodes of a run that are read: of its training steps, of its evaluations, or both."""
    keep: Literal["all", "succeeded"] = "all"
    """Episodes that are kept: all, or those that succeeded."""
    min_reward: float | None = None
    """Lowest total reward of an episode that is kept; none keeps all."""
    pair_gap: NonNegative = 0.0
    """Smallest difference of total rewards between the episodes of a pair for dpo; 0 compares any that differ."""


class DiagnoseConfig(Section):
    """Alarms about a run that goes wrong, and diagnostic measurements."""

    alarms: bool = True
    """Report when a run goes wrong: echo trap, entropy collapse, gradient spikes, endless answers."""
    rollback: bool = False
    """At an alarm, return to the oldest kept checkpoint with half the learning rate."""
    max_rollbacks: Positive = 3
    """Maximum number of rollbacks; later alarms are only reported."""
    information_every: Annotated[int, Field(ge=0)] = 0
    """Steps between measurements of how much the reasoning depends on the prompt; 0 disables them."""
    information_prompts: Annotated[int, Field(ge=2)] = 8
    """Trajectories per measurement, which scores every pair of prompt and reasoning."""
    gradients_every: Annotated[int, Field(ge=0)] = 0
    """Steps between measurements of the gradient norm by reward spread; 0 disables them."""
    gradient_buckets: Annotated[int, Field(ge=2)] = 4
    """Quantiles of reward spread per measurement."""


class EvalConfig(Section):
    """Evaluations before, during and after training, and those of `turnwise eval`."""

    every: Annotated[int, Field(ge=0)] = 0
    """Steps between evaluations on the validation split; 0 evaluates only before and after training."""
    episodes: Positive = 256
    """Episodes per evaluation."""
    temperature: NonNegative = 0.5
    """Sampling temperature; 0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling: probability mass of the most likely tokens to sample from."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """Number of most likely tokens to sample from; 0 samples from all."""
    split: Literal["validation", "test"] = "test"
    """Split of the evaluations before and after training; those in between use the validation split."""


class CheckpointConfig(Section):
    """Checkpoints, which a stopped run resumes from."""

    every: Positive = 10
    """Steps between checkpoints."""
    keep_last: Positive = 2
    """Number of latest checkpoints kept besides the best."""
    keep_best: bool = True
    """Keep the checkpoint with the highest success on the validation split; needs eval.every."""


class RecordConfig(Section):
    """Run folder, and what is recorded in it."""

    folder: str = "runs"
    """Folder of all run folders."""
    name: str | None = None
    """Name of the run folder; none builds one from environment, model and seed."""
    trajectories: Annotated[int, Field(ge=0)] = 1
    """Steps between steps whose trajectories are written, beside those of evaluations; 0 writes none."""
    pictures_every: Annotated[int, Field(ge=0)] = 0
    """Steps between steps whose trajectories are drawn, as a strip (PNG) and a film (GIF); 0 draws none."""
    pictures_per_step: Positive = 1
    """Number of trajectories drawn per step."""
    trackers: tuple[str, ...] = ()
    """Trackers that get the metrics too: wandb (offline unless WANDB_MODE is set), tensorboard, trackio."""
    report: bool = True
    """Write report.html, a single file, when the run ends."""


class Config(Section):
    """All settings of a run, by section. `Config(train={"steps": 50})` changes some of them."""

    seed: Seed = 0
    """Random seed of the run."""
    env: EnvConfig = EnvConfig()
    agent: AgentConfig = AgentConfig()
    model: ModelConfig = ModelConfig()
    lora: LoraConfig = LoraConfig()
    engine: EngineConfig = EngineConfig()
    rollout: RolloutConfig = RolloutConfig()
    context: ContextConfig = ContextConfig()
    curriculum: CurriculumConfig = CurriculumConfig()
    selfplay: SelfPlayConfig = SelfPlayConfig()
    reward: RewardConfig = RewardConfig()
    algo: AlgoConfig = AlgoConfig()
    critic: CriticConfig = CriticConfig()
    archer: ArcherConfig = ArcherConfig()
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
        agent, env = settings.get("agent"), settings.get("env", {})
        has_agent = isinstance(agent, dict) and (agent.get("command") or agent.get("function"))
        return {**settings, "env": {"kind": AGENT_ENV, **env}} if has_agent and isinstance(env, dict) else settings

    @model_validator(mode="after")
    def check_prefix(self) -> "Config":
        if self.rollout.prefix and self.context.mode == "summary":
            raise ValueError("rollout.prefix would also start summaries: leave it empty or choose another context.mode")
        return self

    @model_validator(mode="after")
    def check_budget(self) -> "Config":
        if self.rollout.max_new_tokens >= self.rollout.max_tokens:
            raise ValueError("rollout.max_new_tokens must be below rollout.max_tokens: raise rollout.max_tokens")
        return self
