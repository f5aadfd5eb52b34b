"""Every setting, with its default and its meaning: they live here, and in `algorithm`, and nowhere else."""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from turnwise.config.algorithm import AlgoConfig, CriticConfig, RewardConfig
from turnwise.core.section import LearningRate, NonNegative, Positive, Section, Seed, Share, is_plain


class MixedEnv(Section):
    """One of several environments of a run."""

    kind: str
    weight: Annotated[float, Field(gt=0)] = 1.0
    params: dict[str, Any] = Field(default_factory=dict)


class EnvConfig(Section):
    kind: str = "frozen_lake"
    """A built-in environment's name, or FILE.py:Class."""
    params: dict[str, Any] = Field(default_factory=dict)
    """The environment's own parameters; `turnwise envs NAME` lists them."""
    mix: dict[str, Any] = Field(default_factory=dict)
    """Further environments to draw from, by name: a weight (env.kind's is 1), or a table of kind, weight and params."""

    @model_validator(mode="before")
    @classmethod
    def gather_params(cls, given: Any) -> Any:
        """What stands in the table besides our own keys is a parameter of the environment."""
        if not isinstance(given, dict) or not isinstance(given.get("params", {}), dict):
            return given
        own = {name: value for name, value in given.items() if name in cls.model_fields}
        others = {name: value for name, value in given.items() if name not in own}
        return own | {"params": others | own.get("params", {})} if others else given

    def mixed(self) -> dict[str, MixedEnv]:
        """The further ones. A name that is no environment's needs a kind."""
        tables = {name: given if isinstance(given, dict) else {"weight": given} for name, given in self.mix.items()}
        return {name: MixedEnv.model_validate({"kind": name, **table}) for name, table in tables.items()}

    @field_validator("mix")
    @classmethod
    def check_mix(cls, mix: dict[str, Any]) -> dict[str, Any]:
        try:
            cls.model_construct(mix=mix).mixed()
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(
                f"env.mix holds {'.'.join(map(str, first['loc']))} = {first['input']!r} ({first['msg']}): give each "
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
                    "or a list or table of them: a run's config.toml has to give it back unchanged"
                )
        return params


class ModelConfig(Section):
    name: str = "tiny"
    """"tiny", "smollm2-135m", a Hugging Face name or folder, or a GGUF file."""
    device: str = "auto"
    """"auto", "cpu" or "cuda"."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the model's parameters; auto: float32 on a CPU, bfloat16 on a GPU (with float32 masters)."""
    chat_template: str | None = None
    """A Jinja file, for tokenizers that bring no chat template."""
    warmup_steps: Annotated[int, Field(ge=0)] = 60
    """Of tiny only: optimiser steps on random legal play, so that it knows the format."""
    warmup_seed: Seed = 0
    """Of tiny only: what its first weights and its warm-up are drawn from."""


class LoraConfig(Section):
    rank: Annotated[int, Field(ge=0)] = 0
    """Of a low-rank adapter that is trained in place of the model's own weights; 0: none, all weights are trained."""
    alpha: Annotated[float, Field(gt=0)] | None = None
    """The adapter counts alpha / rank times; none: twice."""
    targets: tuple[str, ...] = ()
    """Names of the layers that get one, as q_proj; none given: every linear layer but the head."""


class RolloutConfig(Section):
    groups: Positive = 8
    """Tasks a step."""
    group_size: Positive = 16
    """Episodes of each task."""
    in_flight: Positive = 256
    """Episodes running at the same time."""
    max_new_tokens: Positive = 64
    """Sampled tokens a turn, at most."""
    max_tokens: Positive = 2048
    """Tokens of an episode's context, at most; the last turn's budget shrinks to fit."""
    timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """Seconds of an episode's own sampling, at most, and as many of its environment; waiting for others is neither."""
    attempts: Positive = 3
    """How often a member is run when its environment or infrastructure fails."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Of sampling in training."""
    stop: tuple[str, ...] = ()
    """Strings that end a turn, besides the model's end-of-turn token."""
    prefix: str = ""
    """What every answer begins with, as "<think>": given to the model, not sampled and not trained."""


class ContextConfig(Section):
    mode: Literal["full", "window", "turn", "summary"] = "full"
    """What the model sees of earlier turns: all, the last ones, a memory in words, or a summary once they are long."""
    turns: Annotated[int, Field(ge=0)] = 4
    """window: earlier turns that stay, besides the pending one; turn: earlier turns that the memory tells."""
    slack: Annotated[int, Field(ge=0)] = 0
    """window: turns that it grows beyond context.turns before it slides; each slide costs a whole window."""
    keep_opening: bool = False
    """window, turn, summary: the first observation stays, as a question must; else only the system message does."""
    memory: Literal["exchanges", "actions"] = "exchanges"
    """turn: tell what was seen and done, or only what was done."""
    memory_chars: Positive = 2000
    """turn: characters of the memory, at most; the oldest turns are left out first."""
    memory_rewards: bool = False
    """turn: tell the environment's rewards too, so that the model sees what it is trained by."""
    summary_at: Positive | None = None
    """summary: tokens of the context at which one is due; none: half of rollout.max_tokens."""
    summary_every: Positive | None = None
    """summary: turns after which one is due, however short; none: only tokens count."""
    summary_tokens: Positive = 128
    """summary: sampled tokens of the model's summary, at most."""
    summary_by: str = "model"
    """summary: "model", or FILE.py:function from the episode's messages to text."""
    summary_prompt: str = (
        "Your context will be cleared. Sum up for yourself what you need in order to go on: the goal, what you did and "
        "found, and your plan."
    )
    """summary: what the model is asked."""


class CurriculumConfig(Section):
    pool: Annotated[int, Field(ge=0)] = 0
    """Training tasks of each environment (of a file: sampled rows), those sometimes solved drawn most; 0: no pool."""
    floor: Annotated[float, Field(gt=0, le=1)] = 0.1
    """How often tasks that are always or never solved are drawn, beside one that is solved half of the time."""
    memory: Share = 0.5
    """What is left of a task's earlier results when it is played again: the agent has changed."""


class SelfPlayConfig(Section):
    opponent: Literal["none", "self", "past"] = "none"
    """In training, who plays the other side of a game: its script (none), the same policy, or an earlier one."""
    random_moves: Annotated[int, Field(ge=0)] = 0
    """In training, the game's parameter of that name: moves that chance makes before the two begin, at most."""
    snapshot_every: Positive = 20
    """Steps between the policies that are kept as opponents, the first being the one that the run starts from."""
    snapshots: Positive = 4
    """How many of them play, the last ones; past: the opponent of each step is drawn from them."""
    ladder_games: Annotated[int, Field(ge=0)] = 32
    """Each new one plays this many games against each of those before it, for its Elo; 0: no ladder."""


class TrainConfig(Section):
    steps: Positive = 200
    """Each step: roll out groups x group_size episodes, then update."""
    learning_rate: LearningRate = 1e-6
    """Of the policy, at its highest."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """"muon": Muon for the matrices (train.muon_learning_rate), AdamW for embeddings, norms and heads."""
    muon_learning_rate: LearningRate = 0.02
    """Of the matrices, where Muon trains them: its steps have a size of their own, about a hundredfold AdamW's."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls after its warm-up."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps in which the learning rate rises from 0."""
    final_share: Share = 0.0
    """Share of the learning rate that a falling schedule ends at."""
    weight_decay: NonNegative = 0.0
    """Of AdamW."""
    betas: tuple[Share, Share] = (0.9, 0.95)
    """Of AdamW."""
    mini_batch: Positive = 32
    """Trajectories an optimiser step."""
    epochs: Positive = 1
    """Passes over a step's trajectories."""
    micro_tokens: Positive | None = None
    """Tokens of one forward and backward pass: changes speed and memory, never the result; none: by the device."""
    optimizer_state: Literal["auto", "device", "host"] = "auto"
    """Where the optimiser's float32 masters and moments live; auto: on the host only where the device is too small."""
    recompute: Literal["auto", "on", "off"] = "auto"
    """Make activations again in the backward pass, for a third more work; auto: only where memory is short."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Longer gradients are scaled down to this norm."""
    max_minutes: Annotated[float, Field(gt=0)] | None = None
    """Stop, resumable, after this much training."""


class SftConfig(Section):
    demos: str | None = None
    """Of `turnwise sft`: "solver", a run (its successful episodes), or a JSONL file of messages."""
    count: Positive = 5000
    """Demonstrations, at most; the solver plays that many."""
    epochs: Positive = 1
    """How often each is seen."""
    batch: Positive = 32
    """Demonstrations a step."""
    learning_rate: LearningRate = 1e-4
    """Of AdamW; it rises for a while and falls to a tenth at the end."""
    think: bool = True
    """solver: a true line about the next actions goes before them."""


class DiagnoseConfig(Section):
    alarms: bool = True
    """Say in one line when a run is going wrong: echo trap, entropy collapse, gradient spikes, endless answers."""
    rollback: bool = False
    """At an alarm, go back to the oldest checkpoint that is kept, with half the learning rate."""
    max_rollbacks: Positive = 3
    """After so many, training goes on and only says so."""
    information_every: Annotated[int, Field(ge=0)] = 0
    """Steps between measurements of how much the reasoning depends on the prompt; 0: none."""
    information_prompts: Annotated[int, Field(ge=2)] = 8
    """Trajectories in one such measurement: it scores their square."""
    gradients_every: Annotated[int, Field(ge=0)] = 0
    """Steps between measurements of the gradient's share by reward spread; 0: none."""
    gradient_buckets: Annotated[int, Field(ge=2)] = 4
    """Quantiles of reward spread in one such measurement."""


class EvalConfig(Section):
    every: Annotated[int, Field(ge=0)] = 0
    """Steps between evaluations on the validation split; 0: none between start and end."""
    episodes: Positive = 256
    """Of each evaluation."""
    temperature: NonNegative = 0.5
    """0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample from the likeliest tokens that make up this share."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """Sample from this many likeliest tokens; 0: from all."""
    split: Literal["validation", "test"] = "test"
    """Of the evaluations before and after; those between use the validation split."""


class CheckpointConfig(Section):
    every: Positive = 10
    """Steps between checkpoints."""
    keep_last: Positive = 2
    """Checkpoints kept besides the best."""
    keep_best: bool = True
    """By success on the validation split; needs eval.every."""


class RecordConfig(Section):
    folder: str = "runs"
    """Where run folders go."""
    name: str | None = None
    """None: made from the environment, the model and the seed."""
    trajectories: Annotated[int, Field(ge=0)] = 1
    """Write every n-th step's trajectories; 0: none."""
    pictures_every: Annotated[int, Field(ge=0)] = 0
    """Draw trajectories of every n-th step, as a strip (PNG) and a film (GIF) beside them; 0: none."""
    pictures_per_step: Positive = 1
    """How many of them."""
    trackers: tuple[str, ...] = ()
    """Where the numbers go besides the run folder: wandb (offline unless WANDB_MODE says), tensorboard, trackio."""
    report: bool = True
    """Write report.html when the run ends: one file that opens anywhere."""


class SystemConfig(Section):
    threads: Annotated[int, Field(ge=0)] = 0
    """CPU threads; 0: one a core, or fewer where the system allows fewer. Part of what makes a run repeatable."""
    compile: bool = True
    """On a GPU, compile the model's layers: half a minute the first time, and twice as fast."""
    cache_share: Annotated[float, Field(gt=0, le=1)] = 0.4
    """On a GPU, the share of its free memory for keys and values, at most."""
    decode_steps: Annotated[int, Field(ge=1, le=16)] = 4
    """On a GPU, tokens an episode samples before the host looks at them."""
    keep_cache: Literal["auto", "on", "off"] = "auto"
    """On a GPU, whether memory for keys and values stays during updates; off: graphs are captured again after each."""


class EngineConfig(Section):
    kind: str = "native"
    """Engine that generates the rollouts, by name. native shares the learner's weights."""


class Config(Section):
    seed: Seed = 0
    """Of everything that is drawn."""
    env: EnvConfig = EnvConfig()
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
    train: TrainConfig = TrainConfig()
    sft: SftConfig = SftConfig()
    diagnose: DiagnoseConfig = DiagnoseConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    record: RecordConfig = RecordConfig()
    system: SystemConfig = SystemConfig()

    @model_validator(mode="after")
    def check_prefix(self) -> "Config":
        if self.rollout.prefix and self.context.mode == "summary":
            raise ValueError("rollout.prefix would begin summaries too: leave it empty, or take another context.mode")
        return self

    @model_validator(mode="after")
    def check_budget(self) -> "Config":
        if self.rollout.max_new_tokens >= self.rollout.max_tokens:
            raise ValueError("rollout.max_new_tokens must be below rollout.max_tokens: raise the second")
        return self
