"""Needs of the parts of a run from each other, as data: `Section.needs` and `Section.lacks`. `run/check_settings.py`
compares them.

A part names a capability that it needs; the section that decides about the capability says when it is missing. Neither
knows the other.
"""

from dataclasses import dataclass

GROUPS = "groups of two or more episodes of a task"
CRITIC = "a critic of tokens or utterances"
TOKEN_CRITIC = "a critic of tokens"
UTTERANCE_CRITIC = "a critic of utterances"
PAIRS = "a better and a worse episode of a task"
TOKEN_SUMS = "a sum over the tokens of an episode"
LEARNER_LOGPROBS = "old log-probabilities of the learner"
PLAIN_RETURNS = "returns that are not normalised"
SUMMED_REWARDS = "rewards that are summed"
SINGLE_SCORES = "a reward of each episode on its own"
KL_IN_LOSS = "the KL term in the loss"
ONE_PASS = "one pass over the samples"
PLAYED = "episodes that are played"
STORED = "stored episodes"
ENVIRONMENT = "an environment"
AGENT = "an agent"
ONE_ENVIRONMENT = "a single environment"
WHOLE_CONTEXT = "the whole context"
IN_TURN = "rollouts and updates in turn"
LOCAL_ENGINE = "an engine in this process"
LOCAL_EPISODES = "episodes that are played in this process"
LOCAL_LEARNER = "a learner in this process"
FIXED_OPPONENT = "an opponent that stays the same"
OWN_GPUS = "GPUs of an engine's own"
TWO_POLICIES = "an engine with two sets of weights"
WARM_UP = "a warm-up of the model"
ADAPTER = "a LoRA adapter"


@dataclass(frozen=True, slots=True)
class Need:
    capability: str
    why: str
    """"algo.advantage grpo compares the members of a group"."""
    otherwise: str = ""
    """Way out without it: "choose algo.advantage gae"."""


@dataclass(frozen=True, slots=True)
class Lack:
    setting: str
    """The setting that decides, with its value: "rollout.group_size 1"."""
    means: str
    """Meaning of that value: "has one episode per task"."""
    fix: str
    """Setting that provides the capability: "set rollout.groups 32 and rollout.group_size 8"."""


@dataclass(frozen=True, slots=True)
class Package:
    """An optional package that settings need."""

    used_by: str
    """"lora.rank"."""
    module: str
    extra: str
    """Extra of turnwise that installs it."""

    def explain_missing(self) -> str:
        return f"{self.used_by} needs a package that is not installed. Run `pip install 'turnwise[{self.extra}]'`."


def explain_missing(need: Need, lack: Lack) -> str:
    """Write one sentence from the two declarations."""
    fix = f"{lack.fix}, or {need.otherwise}" if need.otherwise else lack.fix
    return f"{need.why}, and {lack.setting} {lack.means}. {fix[:1].upper()}{fix[1:]}."


def explain_unused(name: str, lack: Lack) -> str:
    return f"{name} has no effect with {lack.setting}. Remove it, or {lack.fix}."
