"""`import turnwise as tw` is fast, and its public names load on first use."""

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.version import Version

import turnwise as tw


@pytest.mark.parametrize("name", sorted(tw.PUBLIC))
def test_public_name_is_the_listed_object(name: str) -> None:
    module, _, attribute = tw.PUBLIC[name].partition(":")
    assert getattr(tw, name) is getattr(importlib.import_module(module), attribute)


def test_public_names_are_stable() -> None:
    """Changing this list breaks users' programs: it needs an entry in CHANGELOG.md."""
    assert sorted(tw.PUBLIC) == [
        "Advantage",
        "AdvantageInputs",
        "AdvantageResult",
        "AgentResult",
        "Branches",
        "Config",
        "EngineSettings",
        "Env",
        "Estimate",
        "Estimator",
        "EstimatorSettings",
        "Evaluation",
        "EvaluationResult",
        "Filter",
        "Group",
        "IdleReason",
        "Image",
        "InfrastructureFailure",
        "Loss",
        "LossInputs",
        "LossResult",
        "Message",
        "Observation",
        "Outcome",
        "PairInputs",
        "PairLoss",
        "PairResult",
        "Part",
        "Picture",
        "ReplayResult",
        "RewardFunction",
        "RolesEnv",
        "RolesOutcome",
        "Rollout",
        "Rows",
        "Run",
        "RunParts",
        "SelectingLoss",
        "Source",
        "SourceSettings",
        "StepResult",
        "StrictParams",
        "Task",
        "TextEnv",
        "TextPart",
        "Tool",
        "ToolEnv",
        "ToolError",
        "ToolResult",
        "ToolSpec",
        "Trainer",
        "Trajectory",
        "UserError",
        "evaluate",
        "finish",
        "goes_on",
        "load_run",
        "lost",
        "sft",
        "system",
        "tell",
        "to_gymnasium",
        "tool",
        "train",
        "user",
        "won",
    ]


def test_typed_user_script_uses_every_public_name() -> None:
    script = (Path(__file__).parent / "typed_user_script.py").read_text(encoding="utf-8")
    assert [name for name in tw.PUBLIC if f"tw.{name}" not in script] == []


def test_import_loads_no_submodule_and_nothing_heavy() -> None:
    code = (
        "import sys, turnwise; print([n for n in sys.modules if n.split('.')[0] in ('turnwise', 'torch', 'pydantic')])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "['turnwise']"


def test_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'trian'") as caught:
        _ = tw.trian
    assert caught.value.name == "trian" and caught.value.obj is tw  # of which Python makes "Did you mean: 'train'?"


def test_dir_lists_public_names() -> None:
    assert {*tw.PUBLIC, "__version__"} <= set(dir(tw))
    assert Version(tw.__version__).release >= (0, 1)


def test_train_is_a_function_and_training_a_package() -> None:
    from turnwise.training.loop import Loop

    assert tw.train.__module__ == "turnwise.run.api" and tw.training.loop.Loop is Loop


def test_public_names_are_not_submodules() -> None:
    """Importing one would replace the public name."""
    assert [name for name in tw.PUBLIC if importlib.util.find_spec(f"turnwise.{name}")] == []
