"""Train language-model agents that act over many turns, with reinforcement learning.

The public names load when they are first used: `import turnwise` alone costs milliseconds and no torch.
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

LIBRARY_DEFAULTS = {
    # OpenMP threads that spin at the end of a parallel region take the CPU from whoever they wait for: beside one busy
    # process a training step took five times as long.
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "0",
    # mimalloc, PyTorch's allocator on ARM, returns freed memory after 10 ms; a training step then spends a fifth of its
    # time on page faults.
    "MIMALLOC_PURGE_DELAY": "-1",
}
"""Environment variables that torch's libraries read when they are loaded; what the user has set stays."""

for name, value in LIBRARY_DEFAULTS.items():
    os.environ.setdefault(name, value)

PUBLIC = {
    "Advantage": "turnwise.algos.advantage_types:Advantage",
    "AdvantageInputs": "turnwise.algos.advantage_types:AdvantageInputs",
    "AdvantageResult": "turnwise.algos.advantage_types:AdvantageResult",
    "AgentResult": "turnwise.gateway.agent_episodes:AgentResult",
    "Branches": "turnwise.evaluation.replay:Branches",
    "Config": "turnwise.config.schema:Config",
    "Env": "turnwise.core.protocols:Env",
    "Estimate": "turnwise.training.step:Estimate",
    "Estimator": "turnwise.training.step:Estimator",
    "EngineSettings": "turnwise.engine.settings:EngineSettings",
    "EstimatorSettings": "turnwise.algos.estimators:EstimatorSettings",
    "Evaluation": "turnwise.evaluation.episodes:Evaluation",
    "EvaluationResult": "turnwise.run.api:EvaluationResult",
    "Filter": "turnwise.algos.filters:Filter",
    "Group": "turnwise.core.trajectory:Group",
    "IdleReason": "turnwise.record.steps:IdleReason",
    "Loss": "turnwise.algos.loss_types:Loss",
    "LossInputs": "turnwise.algos.loss_types:LossInputs",
    "LossResult": "turnwise.algos.loss_types:LossResult",
    "PairResult": "turnwise.algos.loss_types:PairResult",
    "PairInputs": "turnwise.algos.loss_types:PairInputs",
    "PairLoss": "turnwise.algos.loss_types:PairLoss",
    "SelectingLoss": "turnwise.algos.loss_types:SelectingLoss",
    "Message": "turnwise.core.messages:Message",
    "Observation": "turnwise.core.protocols:Observation",
    "Outcome": "turnwise.envs.text_env:Outcome",
    "Part": "turnwise.training.step:Part",
    "Picture": "turnwise.core.messages:Picture",
    "ReplayResult": "turnwise.run.replay:ReplayResult",
    "RewardFunction": "turnwise.rewards.settings:RewardFunction",
    "RolesEnv": "turnwise.envs.roles.env:RolesEnv",
    "Rollout": "turnwise.training.step:Rollout",
    "Rows": "turnwise.run.api:Rows",
    "Run": "turnwise.run.api:Run",
    "RunParts": "turnwise.training.step:RunParts",
    "RolesOutcome": "turnwise.envs.roles.outcome:RolesOutcome",
    "Source": "turnwise.training.step:Source",
    "SourceSettings": "turnwise.rollout.settings:SourceSettings",
    "StepResult": "turnwise.core.protocols:StepResult",
    "StrictParams": "turnwise.envs.text_env:StrictParams",
    "Task": "turnwise.core.task:Task",
    "TextEnv": "turnwise.envs.text_env:TextEnv",
    "TextPart": "turnwise.core.messages:TextPart",
    "Tool": "turnwise.tools.tool:Tool",
    "ToolEnv": "turnwise.envs.tool_env:ToolEnv",
    "ToolResult": "turnwise.tools.tool:ToolResult",
    "ToolError": "turnwise.tools.tool:ToolError",
    "ToolSpec": "turnwise.core.messages:ToolSpec",
    "Image": "turnwise.pictures.image:Image",
    "Trainer": "turnwise.run.trainer:Trainer",
    "Trajectory": "turnwise.core.trajectory:Trajectory",
    "InfrastructureFailure": "turnwise.core.errors:InfrastructureFailure",
    "UserError": "turnwise.core.errors:UserError",
    "evaluate": "turnwise.run.api:evaluate",
    "finish": "turnwise.envs.roles.outcome:finish",
    "goes_on": "turnwise.envs.text_env:goes_on",
    "load_run": "turnwise.run.api:load_run",
    "lost": "turnwise.envs.text_env:lost",
    "sft": "turnwise.run.api:sft",
    "system": "turnwise.core.messages:system",
    "tell": "turnwise.envs.roles.outcome:tell",
    "to_gymnasium": "turnwise.envs.to_gymnasium:to_gymnasium",
    "tool": "turnwise.tools.function:tool",
    "train": "turnwise.run.api:train",
    "user": "turnwise.core.messages:user",
    "won": "turnwise.envs.text_env:won",
}
"""Module of each public name. The imports below, for editors and type checkers, name the same."""

if TYPE_CHECKING:
    from turnwise.algos.advantage_types import Advantage as Advantage
    from turnwise.algos.advantage_types import AdvantageInputs as AdvantageInputs
    from turnwise.algos.advantage_types import AdvantageResult as AdvantageResult
    from turnwise.algos.estimators import EstimatorSettings as EstimatorSettings
    from turnwise.algos.filters import Filter as Filter
    from turnwise.algos.loss_types import Loss as Loss
    from turnwise.algos.loss_types import LossInputs as LossInputs
    from turnwise.algos.loss_types import LossResult as LossResult
    from turnwise.algos.loss_types import PairInputs as PairInputs
    from turnwise.algos.loss_types import PairLoss as PairLoss
    from turnwise.algos.loss_types import PairResult as PairResult
    from turnwise.algos.loss_types import SelectingLoss as SelectingLoss
    from turnwise.config.schema import Config as Config
    from turnwise.core.errors import InfrastructureFailure as InfrastructureFailure
    from turnwise.core.errors import UserError as UserError
    from turnwise.core.messages import Message as Message
    from turnwise.core.messages import Picture as Picture
    from turnwise.core.messages import TextPart as TextPart
    from turnwise.core.messages import ToolSpec as ToolSpec
    from turnwise.core.messages import system as system
    from turnwise.core.messages import user as user
    from turnwise.core.protocols import Env as Env
    from turnwise.core.protocols import Observation as Observation
    from turnwise.core.protocols import StepResult as StepResult
    from turnwise.core.task import Task as Task
    from turnwise.core.trajectory import Group as Group
    from turnwise.core.trajectory import Trajectory as Trajectory
    from turnwise.engine.settings import EngineSettings as EngineSettings
    from turnwise.envs.roles.env import RolesEnv as RolesEnv
    from turnwise.envs.roles.outcome import RolesOutcome as RolesOutcome
    from turnwise.envs.roles.outcome import finish as finish
    from turnwise.envs.roles.outcome import tell as tell
    from turnwise.envs.text_env import Outcome as Outcome
    from turnwise.envs.text_env import StrictParams as StrictParams
    from turnwise.envs.text_env import TextEnv as TextEnv
    from turnwise.envs.text_env import goes_on as goes_on
    from turnwise.envs.text_env import lost as lost
    from turnwise.envs.text_env import won as won
    from turnwise.envs.to_gymnasium import to_gymnasium as to_gymnasium
    from turnwise.envs.tool_env import ToolEnv as ToolEnv
    from turnwise.evaluation.episodes import Evaluation as Evaluation
    from turnwise.evaluation.replay import Branches as Branches
    from turnwise.gateway.agent_episodes import AgentResult as AgentResult
    from turnwise.pictures.image import Image as Image
    from turnwise.record.steps import IdleReason as IdleReason
    from turnwise.rewards.settings import RewardFunction as RewardFunction
    from turnwise.rollout.settings import SourceSettings as SourceSettings
    from turnwise.run.api import EvaluationResult as EvaluationResult
    from turnwise.run.api import Rows as Rows
    from turnwise.run.api import Run as Run
    from turnwise.run.api import evaluate as evaluate
    from turnwise.run.api import load_run as load_run
    from turnwise.run.api import sft as sft
    from turnwise.run.api import train as train
    from turnwise.run.replay import ReplayResult as ReplayResult
    from turnwise.run.trainer import Trainer as Trainer
    from turnwise.tools.function import tool as tool
    from turnwise.tools.tool import Tool as Tool
    from turnwise.tools.tool import ToolError as ToolError
    from turnwise.tools.tool import ToolResult as ToolResult
    from turnwise.training.step import Estimate as Estimate
    from turnwise.training.step import Estimator as Estimator
    from turnwise.training.step import Part as Part
    from turnwise.training.step import Rollout as Rollout
    from turnwise.training.step import RunParts as RunParts
    from turnwise.training.step import Source as Source


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("turnwise.config.version").installed_version()
    if name not in PUBLIC:
        # name and obj: Python then suggests a similar name
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    module, _, attribute = PUBLIC[name].partition(":")
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC, "__version__"})
