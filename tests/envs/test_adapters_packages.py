"""Properties of every adapter, checked with the real packages."""

import asyncio
import json
import os
import random
import subprocess
import sys
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnwise.core.errors import UserError
from turnwise.core.messages import assistant
from turnwise.core.task import Task
from turnwise.envs.adapters.package_envs import GymnasiumEnv, ReasoningGymEnv, TextArenaEnv, TextWorldEnv
from turnwise.envs.answers import format_answer
from turnwise.envs.registry import spec_of
from turnwise.envs.seeds import seed_for

ADAPTERS = (GymnasiumEnv, ReasoningGymEnv, TextArenaEnv, TextWorldEnv)
IN_ORDER = {ReasoningGymEnv: {"max_turns": 3}}
"""Parameters with which an episode has more than one turn."""


@pytest.fixture(params=ADAPTERS, ids=lambda cls: cls.__name__)
def kind(request: pytest.FixtureRequest, optional_part):
    found = spec_of(request.param)
    if found.install_command:
        optional_part(f"a package is missing: {found.install_command}", *request.param.needs)
    return found


def begun(kind, index=0, split="train", member=0, **params):
    task = Task(env=kind.name, seed=seed_for(split, index), split=split, params=params)
    runner = kind.make(task, member=member)
    return runner, asyncio.run(runner.start())


def played(kind, index=0, member=0, **params) -> list[str]:
    """Return the observations of an episode of random play."""
    runner, opening = begun(kind, index, member=member, **params)
    texts, rng = [opening.messages[1].content], random.Random(0)
    for _ in range(6):
        result = asyncio.run(runner.step(assistant(runner.env.random_answer(rng) or format_answer(["7"]))))
        texts.append(f"{result.messages[0].content} {result.reward} {result.status}")
        if result.over:
            break
    return texts


@pytest.mark.parametrize("cls", ADAPTERS, ids=lambda cls: cls.__name__)
def test_adapter_is_checked_without_its_package(cls) -> None:
    kind = spec_of(cls)
    assert kind.summary.endswith(".") and all(parameter.description for parameter in kind.parameters())
    params = kind.check_params({})
    assert json.loads(json.dumps(params)) == params == kind.check_params(params)
    with pytest.raises(UserError, match="no such parameter"):
        kind.check_params({"no_such": 1})
    ((module, extra),) = cls.needs.items()
    assert extra.startswith("'turnwise[") and (find_spec(module) is None) == (kind.install_command is not None)


def test_adapter_error_includes_the_install_command(monkeypatch) -> None:
    monkeypatch.setattr(TextWorldEnv, "needs", {"no_such_module_of_ours": "'turnwise[textworld]'"})
    kind = spec_of(TextWorldEnv)
    with pytest.raises(UserError, match=r"pip install 'turnwise\[textworld\]'") as caught:
        kind.make(Task(env=kind.name, seed=0))
    assert "\n" not in str(caught.value)


def test_adapter_prompt_states_rules_actions_and_limits(kind) -> None:
    runner, opening = begun(kind, max_turns=17)
    prompt = opening.messages[0].content
    assert runner.env.rules() in prompt and "at most 17 turns" in prompt and "<answer>action</answer>" in prompt
    assert all(name in prompt for name in runner.env.action_names)
    assert begun(kind, index=1, max_turns=17)[1].messages[0].content == prompt, "of equal parameters, equal"


def test_adapter_episodes_depend_only_on_seeds(kind) -> None:
    params = IN_ORDER.get(kind.cls, {})
    assert played(kind, **params) == played(kind, **params)
    assert len({played(kind, index, **params)[0] for index in range(6)}) > 1
    assert played(kind, member=1, **params)[0] == played(kind, **params)[0], "the start is the group's"


@pytest.mark.parametrize("cls", [ReasoningGymEnv, TextWorldEnv], ids=lambda cls: cls.__name__)
def test_adapter_splits_share_no_start_state(cls, optional_part) -> None:
    kind = spec_of(cls)
    if kind.install_command:
        optional_part(f"a package is missing: {kind.install_command}", *cls.needs)
    starts = [
        {begun(kind, index, split)[1].messages[1].content for index in range(5)}
        for split in ("train", "validation", "test")
    ]
    assert sum(map(len, starts)) == len(set.union(*starts)) == 15


def test_adapter_solver_succeeds_within_the_limits(kind) -> None:
    solved = 0
    for index in range(5):
        runner, _ = begun(kind, index)
        way = runner.env.solve()
        if way is None:  # against an opponent there is no way
            assert kind.cls is TextArenaEnv
            continue
        for action in way:
            result = asyncio.run(runner.step(assistant(format_answer([action]))))
        assert result.success and result.terminated and result.reward > 0
        solved += 1
    assert solved == (0 if kind.cls is TextArenaEnv else 5)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(max_size=200), min_size=1, max_size=3), wrapped=st.booleans())
def test_adapter_handles_any_text(kind, texts, wrapped) -> None:
    runner, _ = begun(kind)
    for text in texts:
        result = asyncio.run(runner.step(assistant(format_answer([text]) if wrapped else text)))
        assert result.messages and (result.reward == runner.env.invalid_reward or not result.invalid)
        if result.over:
            break


@pytest.mark.parametrize(
    "text",
    ["x" * 100_000, "[" * 1900, "(" * 1900, "\ud800", "\x00", "__import__('os').abort()", "9**9**9**9", "%s%s", "{0}"],
    ids=lambda text: text[:12].encode("unicode_escape").decode(),
)
def test_adapter_handles_hostile_text(kind, text) -> None:
    runner, opening = begun(kind)
    result = asyncio.run(runner.step(assistant(f"<answer>{text}</answer>")))
    assert not result.success and result.reward <= 0.05
    if result.invalid:
        assert opening.messages[1].content in result.messages[0].content, "the state is as it was"


def play_every_adapter() -> dict[str, list[str]]:
    """Return the observations of an episode with each adapter whose package is installed."""
    found = [spec_of(cls) for cls in ADAPTERS]
    return {
        kind.name: played(kind, 2, member=1, **IN_ORDER.get(kind.cls, {}))
        for kind in found
        if kind.install_command is None
    }


def test_episodes_are_equal_in_every_process(request, optional_part) -> None:
    script = "import test_adapters_packages as test; print(test.json.dumps(test.play_every_adapter()))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={
            "PYTHONHASHSEED": "3",
            "PYTHONUTF8": "1",
            "PYTHONPATH": os.pathsep.join([str(request.path.parent), *sys.path]),
        },
        capture_output=True,
        check=True,
    )
    here = play_every_adapter()
    assert json.loads(done.stdout) == here
    if not here:
        optional_part(f"a package is missing: {spec_of(GymnasiumEnv).install_command}", *GymnasiumEnv.needs)
