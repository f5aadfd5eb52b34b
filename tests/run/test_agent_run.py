"""Agents are trained through the gateway: by `turnwise train`, by a loop of one's own, and in the examples."""

import asyncio
import json
import re
import signal
import sqlite3
import sys
from array import array
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import turnwise as tw
from judges_for_tests import JudgeServer, attempts, serving
from pages_for_tests import ROOT
from processes_for_tests import Forked, run_turnwise
from turnwise.cli.main import main
from turnwise.core.errors import UserError
from turnwise.envs.agent.tasks import load_tasks
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.loading.load import load_model
from turnwise.record.run_folder import CALLS_FILE
from turnwise.report.progress import LineView
from turnwise.run.agent_warmup import load_random_reply, play_random_episodes
from turnwise.run.configure import configure
from turnwise.run.environment_mix import build_environment_mix

AGENT = """
import turnwise as tw

async def chat(client, task):
    messages = [{"role": "user", "content": task["question"]}]
    for _ in range(2):
        reply = await client.chat.completions.create(model="policy", messages=messages)
        text = reply.choices[0].message.content or ""
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on."}]
    return text.count("a") / max(1, len(text))
"""
COMMAND_AGENT = """
import json, os, sys, urllib.request

def post(path, body):
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + path, json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request))

task = json.loads(sys.argv[1])
reply = post("/chat/completions", {"model": "x", "messages": [{"role": "user", "content": task["question"]}]})
text = reply["choices"][0]["message"]["content"] or ""
post("/turnwise/reward", {"reward": len(text)})
print("said", len(text), "SECRET" in os.environ)
"""
SETTINGS = """
[agent]
{agent}
tasks = "tasks.jsonl"

[rollout]
groups = 2
group_size = 2
max_new_tokens = 4
max_tokens = 256

[algo]
advantage = "grpo"

[train]
steps = 2
mini_batch = 4

[eval]
episodes = 2

[checkpoint]
every = 1
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with agents, tasks and settings, which is not the working directory."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "agent.py").write_text(AGENT)
    (folder / "command.py").write_text(COMMAND_AGENT)
    rows = [{"question": f"Question {number} to {split}?", "split": split} for split in SPLITS for number in range(3)]
    (folder / "tasks.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "agent.toml").write_text(SETTINGS.format(agent='function = "agent.py:chat"'))
    command = f'command = "{sys.executable} command.py {{task}}"'
    (folder / "command.toml").write_text(SETTINGS.format(agent=command))
    monkeypatch.chdir(tmp_path)
    return folder


SPLITS = ("train", "validation", "test")


def turns_of(run: tw.Run, step: int) -> Sequence[list[dict[str, Any]]]:
    return [episode["turns"] for episode in run.trajectories(step)]


def test_agent_function_is_trained_and_evaluated(project: Path, tmp_path: Path) -> None:
    run = tw.train(str(project / "agent.toml"), quiet=True, name="agent")
    assert run.finished and run.config.env.kind == "agent"
    assert run.config.agent.function == f"{project / 'agent.py'}:chat"
    episodes = turns_of(run, 1)
    assert len(episodes) == 4
    assert all([turn["extends"] for turn in turns] == [False, True] for turns in episodes)
    assert all(turn["advantages"] is not None for turns in episodes for turn in turns)
    rewards = [sum(turn["reward"] for turn in turns) for turns in episodes]
    texts = [turns[-1]["message"]["content"] for turns in episodes]
    assert rewards == pytest.approx([text.count("a") / max(1, len(text)) for text in texts])
    result = run.evaluate(episodes=3, out=tmp_path / "evaluation", quiet=True)
    assert len(result.trajectories) == 3


def test_judge_alone_rewards_an_agent(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent returns nothing; the judge scores each member of a group by its place."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    (project / "agent.py").write_text(AGENT.replace('    return text.count("a") / max(1, len(text))\n', ""))

    def by_place(messages: list[dict[str, str]]) -> str:
        return json.dumps({"scores": {str(place): place for place in range(1, len(attempts(messages)) + 1)}})

    with serving(JudgeServer(by_place)) as url:
        cache = str(project / "verdicts")
        judge = {
            "model": "m",
            "rubric": "says much",
            "endpoint": url,
            "mode": "relative",
            "name": "much",
            "cache": cache,
        }
        config = {"reward__judges": (judge,), "train__steps": 1}
        run = tw.train(str(project / "agent.toml"), quiet=True, name="judged", **config)
    assert sorted(episode["rewards"]["much"] for episode in run.trajectories(1)) == [0.1, 0.1, 0.2, 0.2]
    assert all(turn["advantages"] is not None for turns in turns_of(run, 1) for turn in turns)


def test_agent_run_is_resumed_after_its_time_limit(project: Path) -> None:
    settings: dict[str, Any] = {"quiet": True, "name": "agent"}
    stopped = tw.train(str(project / "agent.toml"), train__max_minutes=1e-6, **settings)
    assert not stopped.finished
    resumed = stopped.resume(max_minutes=10, quiet=True)
    assert resumed.finished
    assert [row["step"] for row in resumed.metrics() if "rollout/episodes" in row] == [1, 2]


KILLING_AGENT = (
    AGENT
    + """
import os, signal
from pathlib import Path

calls = 0

async def die_once(client, task):
    global calls
    calls += 1
    if calls == 10 and not Path("killed").exists():  # in step 2: evaluation and step 1 have 6 episodes
        await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "last"}])
        Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return await chat(client, task)
"""
)


def stored_calls(run: tw.Run) -> dict[str, list[int]]:
    """Return the sampled ids of the calls that the gateway stored."""
    with closing(sqlite3.connect(run.path / CALLS_FILE)) as store:
        return {call: list(array("q", ids)) for call, ids in store.execute("SELECT id, action_ids FROM calls")}


def test_killed_agent_run_resumes_with_all_episodes(project: Path) -> None:
    """It is killed between two episodes' calls; those of its interrupted step are sampled and stored again."""
    (project / "killing.py").write_text(KILLING_AGENT)
    settings = ["--agent.function", str(project / "killing.py:die_once"), "--name", "killed", "--seed", "5"]
    output = project / "output"
    with (
        output.open("w") as file,
        Forked(run_turnwise, ["train", str(project / "agent.toml"), *settings], stderr=file.fileno()) as process,
    ):
        assert process.wait() == -signal.SIGKILL, output.read_text()
    killed = tw.load_run("killed")
    assert [row["step"] for row in killed.metrics() if "rollout/episodes" in row] == [1]
    assert len(stored_calls(killed)) > 2 * 6, "calls of the interrupted step"
    resumed = killed.resume(quiet=True)
    assert resumed.finished and [row["step"] for row in resumed.metrics() if "rollout/episodes" in row] == [1, 2]
    stored = stored_calls(resumed)
    for step in (1, 2):
        episodes = turns_of(resumed, step)
        assert [len(turns) for turns in episodes] == [2] * 4
        for turn in (turn for turns in episodes for turn in turns):
            assert stored.pop(turn["info"]["call"]) == turn["action_ids"]
    assert len(stored) == 2 * 2, "the last evaluation, and no calls of the interrupted step"


def test_agent_episodes_of_stale_weights_name_their_versions(project: Path) -> None:
    """With rollout.max_staleness 1, step 2 is sampled while step 1 is trained."""
    stale: dict[str, Any] = {"rollout__max_staleness": 1, "train__steps": 3, "eval__episodes": 1}
    run = tw.train(str(project / "agent.toml"), quiet=True, name="stale", **stale)
    rows = [row for row in run.metrics() if "rollout/staleness_max" in row]
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert rows[0]["rollout/staleness_max"] == 0 and rows[1]["rollout/staleness_max"] == 1
    for step in (1, 2, 3):
        turns = [turn for turns in turns_of(run, step) for turn in turns]
        versions = [turn["policy_version"] for turn in turns]  # a list if the weights changed in mid-turn
        flat = [each for version in versions for each in (version if isinstance(version, list) else [version])]
        assert len(turns) == 8 and all(step - 2 <= version < step for version in flat)


def test_sft_refuses_an_agent(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sft", str(project / "agent.toml")]) == 2
    assert "SFT does not run agents. Fine-tune with `turnwise sft --data FILE`" in capsys.readouterr().err


def test_agent_command_is_trained_with_posted_rewards(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hidden")
    short: dict[str, Any] = {"steps": 1, "rollout__groups": 1, "train__mini_batch": 2, "eval__episodes": 1}
    run = tw.train(str(project / "command.toml"), quiet=True, name="command", **short)
    assert len(turns_of(run, 1)) == 2
    for (turn,) in turns_of(run, 1):
        assert turn["reward"] == len(turn["message"]["content"])
        assert turn["info"]["output"].split() == ["said", str(int(turn["reward"])), "False"]
    assert [path.name for path in Path("runs/command/sources").iterdir()] == ["0-command.py"]


def test_doctor_reports_captured_calls(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--agent", str(project / "agent.toml")]) == 0
    printed = capsys.readouterr().out
    assert "2 captured, in 1 context" in printed and '{"question": "Question 0 to' in printed


def test_doctor_explains_an_agent_without_calls(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "silent.py").write_text("async def chat(client, task):\n    return 1.0\n")
    command = ["doctor", "--agent", str(project / "agent.toml"), "--agent.function", f"{project / 'silent.py'}:chat"]
    assert main(command) == 2
    assert "made no model call. It must call the model with the client" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"agent.function": "missing.py:chat"}, "does not exist"),
        ({"agent.reward": "agent.py:nothing"}, "agent.py"),
        ({"agent.command": "python x.py"}, "both name the agent"),
        ({"env.kind": "frozen_lake"}, "which agent.command or agent.function replaces"),
        ({"context": "window"}, "decides itself what it sends"),
        ({"agent.pass_env": "HOME"}, "agent.pass_env has no effect"),
        ({"agent.tasks": "missing.jsonl"}, "agent.tasks: .*missing.jsonl does not exist"),
    ],
)
def test_wrong_settings_of_an_agent_are_explained(
    project: Path, capsys: pytest.CaptureFixture[str], overrides: dict[str, str], reason: str
) -> None:
    words = [word for key, value in overrides.items() for word in (f"--{key}", value)]
    assert main(["train", str(project / "agent.toml"), "--dry-run", *words]) == 2
    assert re.search(reason, capsys.readouterr().err)


def test_tasks_without_a_split_are_divided_by_their_contents(project: Path) -> None:
    (project / "tasks.jsonl").write_text("".join(f'{{"question": {number}}}\n' for number in range(40)))
    config = configure(str(project / "agent.toml"))
    rows = {split: load_tasks(str(config.agent.tasks)).of_split(split) for split in SPLITS}
    assert sum(map(len, rows.values())) == 40 and min(map(len, rows.values())) > 3


async def count_letters(client: Any, task: str) -> float:
    reply = await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": task}])
    return float(len(reply.choices[0].message.content or ""))


TRAINER: dict[str, Any] = {
    "algo": "grpo",
    "quiet": True,
    "rollout__max_new_tokens": 4,
    "rollout__max_tokens": 256,
    "train__mini_batch": 4,
}


def test_trainer_steps_evaluates_saves_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seen: list[int] = []

    async def program() -> None:
        async with tw.Trainer("tiny", name="own", on_step=lambda row: seen.append(row["step"]), **TRAINER) as trainer:
            groups = await trainer.gather(count_letters, ["one", "two"], group_size=2)
            assert [len(group.trajectories) for group in groups] == [2, 2]
            metrics = await trainer.step(groups)
            assert (metrics["step"], metrics["rollout/episodes"]) == (1, 4.0)
            assert (await trainer.evaluate(count_letters, ["three"])).episodes == 1
            reply = await trainer.client().chat.completions.create(
                model="policy", messages=[{"role": "user", "content": "Hi"}]
            )
            assert reply.usage is not None and reply.usage.completion_tokens > 0
        async with tw.Trainer(resume="runs/own", quiet=True) as trainer:
            assert trainer.steps_done == 1
            same = [await trainer.gather(count_letters, ["one"], group_size=2) for _ in range(2)]
            ids = [each.turns[0].action_ids for (group,) in same for each in group.trajectories]
            assert len(set(ids)) == 4, "a task that is gathered again gets new samples"
            assert (await trainer.step([group for (group,) in same]))["step"] == 2
            assert trainer.save() == Path("runs/own/checkpoints/step_000002")

    asyncio.run(program())
    assert seen == [1]
    run = tw.load_run("own")
    assert [row["step"] for row in run.metrics() if "rollout/episodes" in row] == [1, 2]
    assert [row["eval/name"] for row in run.metrics() if "eval/name" in row] == ["validation"]
    assert [episode["task"]["params"]["task"] for episode in run.trajectories(1)] == ["one", "one", "two", "two"]


def test_trainer_works_across_the_cells_of_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook keeps one event loop and runs each cell as a task of its own."""
    monkeypatch.chdir(tmp_path)
    trainer = tw.Trainer("tiny", name="cells", **TRAINER)
    with asyncio.Runner() as kernel:
        assert kernel.run(trainer.open()) is trainer
        for step in (1, 2):
            groups = kernel.run(trainer.gather(count_letters, ["one", "two"], group_size=2))
            assert kernel.run(trainer.step(groups))["step"] == step
        kernel.run(trainer.close())
    assert Path("runs/cells/checkpoints/step_000002").is_dir()
    with pytest.raises(UserError, match=r"not open: .* `await trainer\.open\(\)`"):
        trainer.save()


@pytest.mark.parametrize(("given", "first"), [({}, "step 1"), ({"steps": 2}, "step 1/2")])
def test_trainer_shows_a_total_only_if_steps_are_given(
    given: dict[str, int],
    first: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)

    async def program() -> None:
        async with tw.Trainer("tiny", name="shown", **TRAINER | given | {"quiet": False}) as trainer:
            for _ in range(2):
                await trainer.step(await trainer.gather(count_letters, ["one", "two"], group_size=2))

    monkeypatch.setattr(LineView, "step_interval_s", 0.0)
    asyncio.run(program())
    printed = capsys.readouterr()
    lines = [line for line in f"{printed.out}{printed.err}".splitlines() if line.startswith("step")]
    assert lines[0].split("  ")[0] == first and len(lines) == 2
    assert all(("left" in line) is bool(given) for line in lines)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"eval__every": 1}, "eval.every has no effect in tw.Trainer"),
        ({"rollout__max_staleness": 1}, "rollout.max_staleness has no effect in tw.Trainer"),
        ({"train__stepz": 1}, "unknown key train.stepz"),
    ],
)
def test_trainer_refuses_settings_without_effect(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        tw.Trainer("tiny", **settings)


def test_trainer_explains_wrong_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def sync_agent(client: Any, task: Any) -> float:
        return 1.0

    async def program() -> None:
        trainer = tw.Trainer("tiny", name="wrong", **TRAINER)
        with pytest.raises(UserError, match="The trainer is not open"):
            await trainer.gather(count_letters, ["one"])
        async with trainer:
            with pytest.raises(UserError, match="not a JSON value"):
                await trainer.gather(count_letters, [object()])
            with pytest.raises(UserError, match=r"write async def sync_agent\(client, task\)"):
                await trainer.gather(sync_agent, ["one"])  # type: ignore[arg-type]
            with pytest.raises(UserError, match="needs at least one group"):
                await trainer.step([])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(program())
    assert not Path("runs/wrong").exists(), "a program that fails before its first step can be corrected and run again"


EXAMPLES = [("agent_plain", "openai"), ("agent_openai_sdk", "agents"), ("agent_langgraph", "langgraph")]


def test_every_example_has_a_test_and_a_row_in_the_docs() -> None:
    names = {path.parent.name for path in (ROOT / "examples").glob("*/agent.toml")}
    assert names == {name for name, _ in EXAMPLES}
    page = (ROOT / "docs/agents.md").read_text()
    assert all(f"`turnwise train examples/{name}/agent.toml`" in page for name in names)


@pytest.mark.parametrize(("example", "package"), EXAMPLES)
def test_example_agent_trains_after_a_warm_up(
    example: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    short = {"model__warmup_steps": 2, "rollout__groups": 2, "rollout__group_size": 2, "train__mini_batch": 4}
    path = ROOT / "examples" / example / "agent.toml"
    run = tw.train(str(path), steps=1, quiet=True, eval__episodes=1, **short)
    assert run.finished and run.summary["episodes"] == 4
    assert (run.path / "base").is_dir(), "the warmed-up model"


@pytest.mark.soak
@pytest.mark.parametrize(
    ("example", "package", "at_most_before", "at_least_after"),
    [
        ("agent_plain", "openai", 0.7, 0.85),
        ("agent_openai_sdk", "agents", 0.5, 0.75),
        ("agent_langgraph", "langgraph", 0.5, 0.75),
    ],
)
def test_example_agent_learns(
    example: str,
    package: str,
    at_most_before: float,
    at_least_after: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With its own settings, in minutes on a CPU: it stops as soon as it has learned, since a test has 15 minutes."""
    pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    success = list[float]()

    def stop_when_learned(row: Mapping[str, Any]) -> None:
        success.append(row["rollout/success"])
        if len(success) >= 3 and min(success[-3:]) > at_least_after:
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        tw.train(
            str(ROOT / "examples" / example / "agent.toml"), quiet=True, eval__episodes=1, on_step=stop_when_learned
        )
    assert success[0] < at_most_before
    assert min(success[-3:]) > at_least_after


@pytest.mark.soak
def test_example_quiz_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/examples/quiz.py with the settings of docs/cases.md and the grader without a loophole."""
    monkeypatch.chdir(tmp_path)
    settings: dict[str, Any] = {
        "rollout__groups": 32,
        "rollout__group_size": 8,
        "rollout__max_new_tokens": 12,
        "rollout__max_tokens": 256,
        "train__optimizer__learning_rate": 0.005,
        "train__learning_rate": 1e-3,
        "train__mini_batch": 128,
    }
    quiz = f"{ROOT / 'docs/examples/quiz.py'}:Quiz"
    run = tw.train(quiz, env__params={"grader": "equals"}, steps=30, quiet=True, **settings)
    assert run.summary["success_after"] > 0.8 > 0.5 > run.summary["success_before"]


REPLIES = """
def yes_or_no(text, rng):
    assert text.startswith("<|user|>Question") and text.endswith("<|assistant|>"), text
    return rng.choice(["yes", "no"])

def broken(text, rng):
    return {}["reply"]

def short(text):
    return "yes"
"""


def test_warm_up_of_an_agent_plays_its_training_tasks_with_random_replies(project: Path) -> None:
    (project / "agent.py").write_text(AGENT + REPLIES)
    config = configure(
        str(project / "agent.toml"), overrides=[("agent.random_reply", str(project / "agent.py:yes_or_no"))]
    )
    environments, loaded = (
        build_environment_mix(config.env, config.agent),
        load_model("tiny", attn_implementation=ATTENTION),
    )
    reply = load_random_reply(config.agent)
    assert reply is not None
    played = asyncio.run(play_random_episodes(config, environments, loaded, reply, count=24))
    texts = [turn.message.content for trajectory in played for turn in trajectory.turns]
    assert len(texts) == 48 and set(texts) == {"yes", "no"} and 10 < texts.count("yes") < 38
    assert {trajectory.task.split for trajectory in played} == {"train"}
    again = asyncio.run(play_random_episodes(config, environments, loaded, reply, count=24))
    assert [turn.action_ids for each in again for turn in each.turns] == [
        turn.action_ids for each in played for turn in each.turns
    ]


def test_agent_begins_with_the_replies_of_its_warm_up(project: Path) -> None:
    (project / "agent.py").write_text(AGENT + REPLIES)
    settings: dict[str, Any] = {"agent__random_reply": str(project / "agent.py:yes_or_no"), "steps": 1, "quiet": True}
    run = tw.train(str(project / "agent.toml"), name="warm", model__warmup_steps=15, **settings)
    texts = [turn["message"]["content"] for turns in turns_of(run, 1) for turn in turns]
    assert len(texts) == 8 and sum(text in ("yes", "no") for text in texts) >= 6, texts


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ("broken", r"The agent failed during the warm-up of tiny: .*KeyError: 'reply' at agent\.py"),
        ("short", r"agent\.random_reply .*:short must take two arguments: write function\(text, rng\)"),
        ("missing", "missing"),
    ],
)
def test_wrong_random_reply_of_an_agent_is_explained(reply: str, problem: str, project: Path) -> None:
    (project / "agent.py").write_text(AGENT + REPLIES)
    with pytest.raises(UserError, match=problem):
        tw.train(
            str(project / "agent.toml"),
            agent__random_reply=str(project / f"agent.py:{reply}"),
            name="wrong",
            quiet=True,
        )
