"""Environments and rewards are tried before a model is loaded."""

import asyncio
import logging
import random
import re
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import turnwise as tw
from runs_for_tests import small
from turnwise.cli.main import main
from turnwise.core.errors import UserError
from turnwise.envs.registry import spec_of
from turnwise.envs.spec import EnvSpec
from turnwise.models.loading.tiny import tiny_tokenizer
from turnwise.run import train as train_module
from turnwise.run.environment_mix import build_environment_mix
from turnwise.run.trial_episodes import check_replies_fit, try_before_torch, try_environments
from turnwise.training.sft import play_demonstration

ENV = '''
import turnwise as tw

class Mine(tw.TextEnv):
    """Say 1."""
    max_turns = 3
    action_names = ("one", "a very long name of an action that nobody would ever want to say")
    def reset(self, rng):
        return "go"
    def step(self, action):
        RESULT
        return tw.goes_on("again", reward=0.5)

def fair(trajectory):
    last = trajectory.turns[-1]
    assert len(trajectory.turns) == 3 and last.info["actions"] and not last.invalid and trajectory.total_reward == 1.5
    return [0.1, 0.2, sum(last.action_logprobs) / len(last.action_ids)]

def broken(trajectory):
    return trajectory.turns[9].reward  # line 20
'''


def ignore(line: str) -> None:
    """Print nothing."""


def write_env(folder: Path, result: str = "") -> str:
    (folder / "mine.py").write_text(dedent(ENV.replace("RESULT", result or "pass")))
    return str(folder / "mine.py")


def test_bug_in_step_is_reported_before_a_model_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_module.ReinforcementRun, "train", lambda *given: pytest.fail("loads the model first"))
    config = small(tmp_path / "runs", env__kind=f"{write_env(tmp_path, '{}[action]')}:Mine")
    with pytest.raises(UserError, match=r"Mine\.step raised KeyError: .* at mine\.py:11 \(in a trial episode"):
        train_module.train(config)
    assert not (tmp_path / "runs").exists()


def test_environments_are_tried_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train_module, "ReinforcementRun", lambda *given: pytest.fail("the model is next"))
    command = ["train", f"{write_env(tmp_path)}:Mine", f"--record.folder={tmp_path}"]
    with pytest.raises(pytest.fail.Exception, match="the model is next"):
        main(command)
    assert capsys.readouterr().out.count("trying 8 episodes") == 1


def test_environments_with_servers_are_tried_after_their_check(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(
        "".join(f'{{"question": "{number}?", "answer": "1"}}\n' for number in range(40))
    )
    params = {"tasks": str(tmp_path / "rows.jsonl"), "reward": "exact_match", "tools": [{"mcp": "true"}]}
    assert not try_before_torch(small(tmp_path, env__kind="tools", env__params=params), pytest.fail)
    shown: list[str] = []
    assert try_before_torch(small(tmp_path, env__kind="tools", env__params=params | {"tools": []}), shown.append)
    assert len(shown) == 1


def test_bug_in_a_reward_is_reported_with_file_and_line(tmp_path: Path) -> None:
    file = write_env(tmp_path)
    for kind in (f"{file}:Mine", "frozen_lake"):
        config = small(tmp_path, env__kind=kind, reward__functions=[f"{file}:broken"])
        with pytest.raises(UserError, match=r"the reward broken raised IndexError: .* at mine\.py:20"):
            try_environments(config, build_environment_mix(config.env, config.agent), ignore)


def test_trial_episode_is_scored_like_a_trajectory(tmp_path: Path) -> None:
    file = write_env(tmp_path)
    config = small(tmp_path, env__kind=f"{file}:Mine", reward__functions=[f"{file}:fair"])
    try_environments(config, build_environment_mix(config.env, config.agent), ignore)


def test_environments_without_user_code_are_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EnvSpec, "make", lambda *given: pytest.fail("plays an episode"))
    config = small(tmp_path, env__kind="frozen_lake")
    try_environments(config, build_environment_mix(config.env, config.agent), ignore)


def test_environment_may_answer_without_a_message(tmp_path: Path) -> None:
    class Silent:
        """Takes three answers."""

        def __init__(self, task: tw.Task, rng: random.Random) -> None:
            self.turns = 0

        async def start(self) -> tw.Observation:
            return tw.Observation(messages=(tw.user("go"),))

        async def step(self, action: tw.Message) -> tw.StepResult:
            self.turns += 1
            return tw.StepResult(terminated=self.turns == 3)

        async def close(self) -> None:
            pass

    config = small(tmp_path, env__kind=spec_of(Silent).id)
    mix = build_environment_mix(config.env, config.agent)
    try_environments(config, mix, ignore)
    ((spec, params),) = mix.with_params
    make = partial(spec.make, tw.Task(env=spec.name, params=params, seed=0), 0)
    exchanges, _ = asyncio.run(play_demonstration(make, lambda: lambda env, text: f"saw {text}", attempts=1))
    assert [each.answer for each in exchanges] == ["saw go", "saw ", "saw "]


WAITING = """
class Waits(TextEnvRunner):
    async def step(self, action):
        await asyncio.Event().wait()

Mine.runner = Waits
"""


@pytest.mark.parametrize(
    ("step", "more", "cause"),
    [("while True: pass", "", r" \(Mine ran for .* without a pause, at mine\.py:13\)"), ("", WAITING, "")],
    ids=["blocks", "waits"],
)
def test_trial_episodes_that_hang_end_at_their_time_limit(
    step: str, more: str, cause: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = Path(write_env(tmp_path, step))
    file.write_text(f"import asyncio\nfrom turnwise.envs.runner import TextEnvRunner\n{file.read_text()}{more}")
    config = small(tmp_path, env__kind=f"{file}:Mine", rollout__trial_s=0.5)
    shown: list[str] = []
    with caplog.at_level(logging.WARNING):
        try_environments(config, build_environment_mix(config.env, config.agent), shown.append)
    assert shown == ["Mine: trying 8 episodes of random answers"]
    (record,) = caplog.records
    assert re.fullmatch(
        rf"note: the trial episodes of Mine did not end within rollout\.trial_s 0\.5{cause}, so the run starts without "
        r"them; --rollout\.trial_s 0 skips them",
        record.getMessage(),
    )


def test_trial_episode_whose_reward_hangs_ends_at_its_time_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The reward of a row runs in a task of its own."""
    (tmp_path / "reward.py").write_text("import time\n\ndef score(answer, row):\n    time.sleep(1000)\n")
    rows = "".join(f'{{"question": "{number}?", "answer": "1"}}\n' for number in range(40))
    (tmp_path / "rows.jsonl").write_text(rows)
    params = {"tasks": str(tmp_path / "rows.jsonl"), "reward": f"{tmp_path / 'reward.py'}:score"}
    config = small(tmp_path / "runs", env__kind="tools", env__params=params, rollout__trial_s=0.5)
    with caplog.at_level(logging.WARNING):
        try_environments(config, build_environment_mix(config.env, config.agent), ignore)
    assert "the trial episodes of tools did not end within rollout.trial_s 0.5" in caplog.text


def test_trial_episodes_can_be_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EnvSpec, "make", lambda *given: pytest.fail("plays an episode"))
    config = small(tmp_path, env__kind=f"{write_env(tmp_path)}:Mine", rollout__trial_s=0)
    try_environments(config, build_environment_mix(config.env, config.agent), lambda line: pytest.fail(line))


def test_infrastructure_failure_in_a_trial_is_only_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    failing = 'raise tw.InfrastructureFailure("the server is away")'
    config = small(tmp_path, env__kind=f"{write_env(tmp_path, failing)}:Mine")
    with caplog.at_level(logging.WARNING):
        try_environments(config, build_environment_mix(config.env, config.agent), ignore)
    assert "a trial episode of random answers failed: the server is away" in caplog.text


@pytest.mark.parametrize(("failing", "is_fatal"), [("next(CALLS) < 1", False), ("True", True)])
def test_bug_is_reported_once(failing: str, is_fatal: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = Path(write_env(tmp_path, f"assert not ({failing})"))
    file.write_text(f"{file.read_text()}\nCALLS = iter(range(9999))\n")
    config = small(tmp_path, env__kind=f"{file}:Mine", rollout__attempts=2)
    error = ""
    with caplog.at_level(logging.WARNING):
        try:
            try_environments(config, build_environment_mix(config.env, config.agent), ignore)
        except UserError as raised:
            error = str(raised)
    assert bool(error) is is_fatal
    assert f"{caplog.text}{error}".count("Mine.step raised AssertionError at mine.py:11") == 1


@pytest.mark.parametrize(
    ("start", "notes"),
    [("str(rng.random())", 0), ("str(next(STARTS))", 1), ("draw(rng.randrange(99))", 0), ("draw(next(STARTS))", 1)],
)
def test_start_that_does_not_follow_from_its_seed_is_reported(
    start: str, notes: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write_env(tmp_path)
    text = Path(file).read_text().replace('return "go"', f"return {start}")
    draw = "def draw(grey): return tw.Image(np.full((4, 4, 3), grey, np.uint8))"
    Path(file).write_text(f"import numpy as np\n{draw}\nSTARTS = iter(range(99))\n{text}")
    config = small(tmp_path, env__kind=f"{file}:Mine")
    with caplog.at_level(logging.WARNING):
        try_environments(config, build_environment_mix(config.env, config.agent), ignore)
    assert caplog.text.count("Mine.reset gave two starts for one seed") == notes


@pytest.mark.parametrize(("rules", "notes"), [('"""Say 1."""', 0), ("def rules(self): return 'Say 1.'", 0), ("", 1)])
def test_environment_without_rules_is_reported(
    rules: str, notes: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write_env(tmp_path)
    Path(file).write_text(Path(file).read_text().replace('"""Say 1."""', rules))
    config = small(tmp_path, env__kind=f"{file}:Mine")
    with caplog.at_level(logging.WARNING):
        try_environments(config, build_environment_mix(config.env, config.agent), ignore)
    assert caplog.text.count("Mine has no docstring") == notes


def check_fits(folder: Path, max_new_tokens: int, **settings: Any) -> None:
    config = small(folder, rollout__max_new_tokens=max_new_tokens, **settings)
    check_replies_fit(config.rollout, build_environment_mix(config.env, config.agent), tiny_tokenizer())


def check_refused_below_the_named_length(folder: Path, problem: str, **settings: Any) -> int:
    """The error names the number of tokens that is enough."""
    with pytest.raises(UserError, match=problem) as told:
        check_fits(folder, 8, **settings)
    needed = int(str(told.value).partition(" has ")[2].partition(" ")[0])
    assert f"rollout.max_new_tokens is 8: set it to {needed} or more" in str(told.value)
    with pytest.raises(UserError):
        check_fits(folder, needed - 1, **settings)
    check_fits(folder, needed, **settings)
    return needed


def test_action_longer_than_a_turn_is_refused_with_the_length_it_needs(tmp_path: Path) -> None:
    kind = f"{write_env(tmp_path)}:Mine"
    check_refused_below_the_named_length(tmp_path, 'the answer with the action "a very long', env__kind=kind)


def test_description_longer_than_a_turn_is_refused_with_its_length(tmp_path: Path) -> None:
    """Else every reply is cut before its answer, and nothing is learned."""
    lengths = [
        check_refused_below_the_named_length(
            tmp_path,
            f"env.params.reasoning {form}: a reply of frozen_lake has",
            env__kind="frozen_lake",
            env__params={"reasoning": form},
        )
        for form in ("grounding", "both")
    ]
    assert 50 < lengths[0] < lengths[1], "states have several facts"
    lake = {"kind": "frozen_lake", "params": {"reasoning": "both"}}
    with pytest.raises(UserError, match=r"^env\.mix\.lake\.params\.reasoning both: a reply of lake has"):
        check_fits(tmp_path, 8, env__mix={"lake": lake})
    check_fits(tmp_path, 8, env__kind="frozen_lake")


def test_sections_of_unknown_states_have_to_fit_into_a_turn(tmp_path: Path) -> None:
    judge = {"model": "tiny", "endpoint": "local"}
    settings = {"env__kind": "bandit", "env__params": {"reasoning": "both", "state_judge": judge}}
    problem = "env.params.reasoning both: a reply of bandit with empty sections has"
    check_refused_below_the_named_length(tmp_path, problem, **settings)
    check_fits(tmp_path, 8, rollout__prefix="<think><observation>two arms</observation></think>", **settings)
