"""`tw.Trainer(url=...)` and a real `turnwise serve --train`: same weights, exact ids, lost processes."""

import asyncio
import os
import re
import signal
import sqlite3
from array import array
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file

import turnwise as tw
from processes_for_tests import Forked, forked_with_output, run_turnwise
from turnwise.cli.main import main
from turnwise.core.errors import Outage, UserError
from turnwise.record.run_folder import CALLS_FILE
from turnwise.run import remote_trainer, serving
from turnwise.run.trainer_backend import LocalBackend
from turnwise.training.checkpoints import Checkpoints

SETTINGS = {
    "algo.advantage": "grpo",
    "rollout.max_new_tokens": "4",
    "rollout.max_tokens": "256",
    "rollout.in_flight": "1",
    "train.mini_batch": "4",
    "train.learning_rate": "1e-3",
    "checkpoint.every": "1",
    "seed": "3",
}
TASKS = ["one", "two"]


@contextmanager
def training_server(
    folder: Path, *words: str, prepare: Callable[[], None] | None = None
) -> Iterator[tuple[str, str, Forked]]:
    """Yield the url and token of a server in `folder`, and its process."""
    command, errors = ["serve", "--train", "--port", "0", *words], folder / "errors"
    with (
        errors.open("w") as file,
        forked_with_output(run_turnwise, command, cwd=folder, stderr=file.fileno(), prepare=prepare) as (server, lines),
    ):
        try:
            for line in lines:
                if found := re.search(r'tw.Trainer\(url="(.*)", api_key="(.*)"\)', line):
                    yield found[1], found[2], server
                    break
            else:
                raise AssertionError(errors.read_text())
        finally:
            if server.poll() is None:
                os.kill(server.pid, signal.SIGTERM)


def new_run(name: str) -> list[str]:
    return [
        "--name",
        name,
        "--model.name",
        "tiny",
        *(w for key, value in SETTINGS.items() for w in (f"--{key}", value)),
    ]


async def count_letters(client: Any, task: str) -> float:
    messages: list[Any] = [{"role": "user", "content": task}]
    for _ in range(2):
        reply = await client.chat.completions.create(model="policy", messages=messages)
        text = reply.choices[0].message.content or ""
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on."}]
    return float(len(text))


async def train(trainer: tw.Trainer, steps: int = 2) -> list[dict[str, Any]]:
    rows = []
    async with trainer:
        for _ in range(steps):
            groups = await trainer.gather(count_letters, TASKS, group_size=2)
            rows.append(await trainer.step(groups))
        rows.append({"eval": (await trainer.evaluate(count_letters, ["three"])).metrics()["reward"]})
    return rows


def weights(run: Path) -> dict[str, Any]:
    newest = max((run / "checkpoints").glob("step_*"))
    return {name: value for file in newest.rglob("*.safetensors") for name, value in load_file(file).items()}


def test_remote_trainer_gives_the_weights_of_the_local_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {key.replace(".", "__"): value for key, value in SETTINGS.items() if key != "seed"}
    local = asyncio.run(train(tw.Trainer("tiny", name="local", quiet=True, seed=3, system__threads=1, **settings)))
    with training_server(tmp_path, *new_run("remote"), "--system.threads", "1") as (url, token, _):
        seen: list[int] = []
        trainer = tw.Trainer(url=url, api_key=token, on_step=lambda row: seen.append(row["step"]))
        remote = asyncio.run(train(trainer))
        with pytest.raises(UserError, match="refuses the api_key"):
            asyncio.run(train(tw.Trainer(url=url, api_key="wrong")))
        with pytest.raises(UserError, match="belongs to the server"):
            tw.Trainer("tiny", url=url, api_key=token)
    assert seen == [1, 2]
    for ours, theirs in zip(local, remote, strict=True):
        timeless = {key for key in ours if not key.startswith("time/")}
        assert {key for key in theirs if not key.startswith("time/")} == timeless
        assert all(ours[key] == pytest.approx(theirs[key], nan_ok=True) for key in timeless)
    expected, trained = weights(tmp_path / "runs/local"), weights(tmp_path / "runs/remote")
    assert expected.keys() == trained.keys() and all(bool((expected[name] == trained[name]).all()) for name in expected)
    run = tw.load_run(tmp_path / "runs/remote")
    assert [row["eval/name"] for row in run.metrics() if "eval/name" in row] == ["validation"]
    with closing(sqlite3.connect(run.path / CALLS_FILE)) as store:
        stored = {call: list(array("q", ids)) for call, ids in store.execute("SELECT id, action_ids FROM calls")}
    for step in (1, 2):
        turns = [turn for episode in run.trajectories(step) for turn in episode["turns"]]
        assert len(turns) == 8 and all(stored[turn["info"]["call"]] == turn["action_ids"] for turn in turns)


def kill_before_checkpoint() -> None:
    """Kill the process in its second step, once that is trained and recorded."""
    save = Checkpoints.save

    def save_or_die(self: Checkpoints, learner: Any, state: Any, *, best: bool = False) -> Path:
        if state.step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return save(self, learner, state, best=best)

    Checkpoints.save = save_or_die  # type: ignore[method-assign]


def kill_before_reply() -> None:
    """Kill the process in its second step, once that is saved and before the trainer knows."""
    step = LocalBackend.step

    async def step_and_die(self: LocalBackend, collected: Any) -> dict[str, Any]:
        row = await step(self, collected)
        if self.steps_done == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return row

    LocalBackend.step = step_and_die  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("prepare", "saved"),
    [pytest.param(kill_before_checkpoint, 1, marks=pytest.mark.soak), (kill_before_reply, 2)],
)
def test_remote_trainer_resumes_a_server_that_was_killed_in_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: Callable[[], None], saved: int
) -> None:
    """The trainer's loop counts by `steps_done`, so that every step is in the run once."""
    monkeypatch.setattr(remote_trainer, "RETRY_AFTER_S", (0.1,))

    async def train_until(step: int, url: str, token: str) -> None:
        async with tw.Trainer(url=url, api_key=token) as trainer:
            while trainer.steps_done < step:
                groups = await trainer.gather(count_letters, TASKS, group_size=2)
                assert (await trainer.step(groups))["step"] == trainer.steps_done

    async def resume(url: str, token: str) -> None:
        async with tw.Trainer(url=url, api_key=token) as lost:
            assert (lost.steps_done, lost.path) == (saved, Path("runs/killed"))
            await train_until(3, url, token)
            await lost.gather(count_letters, TASKS, group_size=2)

    with (
        training_server(tmp_path, *new_run("killed"), prepare=prepare) as (url, token, _),
        pytest.raises(Outage, match=r"cannot be reached .* start `turnwise serve --train` there, with --resume RUN"),
    ):
        asyncio.run(train_until(3, url, token))
    with (
        training_server(tmp_path, "--resume", "runs/killed") as (url, token, _),
        pytest.raises(UserError, match=r"another trainer has connected: .* continues after step 3"),
    ):
        asyncio.run(resume(url, token))
    run = tw.load_run(tmp_path / "runs/killed")
    rows = [row for row in run.metrics() if "rollout/episodes" in row]
    assert [(row["step"], row["rollout/episodes"]) for row in rows] == [(1, 4.0), (2, 4.0), (3, 4.0)]
    with closing(sqlite3.connect(run.path / CALLS_FILE)) as store:
        stored = {call: list(array("q", ids)) for call, ids in store.execute("SELECT id, action_ids FROM calls")}
    for step in (1, 2, 3):
        turns = [turn for episode in run.trajectories(step) for turn in episode["turns"]]
        assert len(turns) == 8 and all(stored.pop(turn["info"]["call"]) == turn["action_ids"] for turn in turns)
    assert not stored, "calls that no step was trained on"


def test_remote_trainer_explains_wrong_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_trainer, "RETRY_AFTER_S", ())
    with pytest.raises(UserError, match="needs api_key"):
        tw.Trainer(url="http://127.0.0.1:1")
    with pytest.raises(UserError, match="resume belongs to the server"):
        tw.Trainer(url="http://127.0.0.1:1", api_key="x", resume="runs/x")
    with pytest.raises(Outage, match=r"http://127.0.0.1:1 cannot be reached \(ConnectError\)"):
        asyncio.run(train(tw.Trainer(url="http://127.0.0.1:1", api_key="x")))
    with pytest.raises(Outage, match="cannot be reached"):
        asyncio.run(train(tw.Trainer(url="gpu:8000", api_key="x")))


@pytest.mark.parametrize("kept", [True, False])
def test_stopped_server_prints_how_to_resume(kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"

    @asynccontextmanager
    async def opened(*_: Any, prepare: Callable[..., None], **__: Any) -> AsyncIterator[Any]:
        backend = SimpleNamespace(access=SimpleNamespace(url="http://h"), path=folder, steps_done=int(kept))
        prepare(SimpleNamespace(listen_at=lambda *given: None), backend)
        yield backend
        if kept:
            folder.mkdir()

    async def stop(_: object) -> None:
        pass

    monkeypatch.setattr(serving, "open_local", opened)
    monkeypatch.setattr(serving, "_wait_for_stop_or", stop)
    lines: list[str] = []
    serving.serve_training([], resume=None, host="127.0.0.1", port=0, admin_token="t" * 32, write=lines.append)
    assert [f"serve --train --resume {folder}" in line for line in lines] == [False, False, *([True] if kept else [])]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--train", "--out", "calls.sqlite"], "--out has an effect only without --train"),
        (["--resume", "runs/x"], "--resume has an effect only with --train"),
        (["--train", "--eval.every", "2"], "eval.every has no effect in tw.Trainer"),
        (
            ["--train", "--agent.reward", "reward.py:score"],
            "on the machine of the remote agent: return the reward",
        ),
    ],
)
def test_serve_train_refuses_settings_without_effect(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *words]) == 2
    assert reason in capsys.readouterr().err
