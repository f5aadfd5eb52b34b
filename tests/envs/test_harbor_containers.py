"""Harbor tasks in containers of podman: those that the sandbox refuses, with the same defences."""

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from containers_for_tests import BASE, make_base, podman
from harbor_for_tests import write_task
from turnwise.cli.main import main
from turnwise.core.errors import RewardFailure, UserError
from turnwise.core.messages import assistant
from turnwise.core.protocols import StepResult
from turnwise.core.task import Task
from turnwise.envs.registry import load_spec
from turnwise.envs.seeds import seed_for

SPEC = load_spec("harbor")
STAGES = f"FROM {BASE} AS build\nRUN echo made > /made\nFROM {BASE}\nCOPY --from=build /made /app/made\nWORKDIR /app\n"
"""Two stages, which the sandbox does not build."""
SETTINGS = '[metadata]\nsplit = "train"\n'


@pytest.fixture(scope="module", autouse=True)
def base(tmp_path_factory: pytest.TempPathFactory, optional_part: Callable[..., NoReturn]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        if problem := make_base(tmp_path_factory.mktemp("base"), patch):
            optional_part(problem, "podman")
        yield


def one_task(folder: Path, **options: Any) -> Path:
    write_task(folder / "task", **{"dockerfile": STAGES, "settings": SETTINGS, **options})
    return folder


def run(folder: Path, *commands: str, **params: Any) -> list[StepResult]:
    """Run commands, then answer."""
    settings = SPEC.check_params({"folder": str(folder), "disk_mb": 8, "containers": "podman", **params})
    runner: Any = SPEC.make(Task(env="harbor", params=settings, seed=seed_for("train", 0), split="train"))

    async def episode() -> list[StepResult]:
        try:
            await runner.start()
            replies = [runner.env.call("shell", command=command) for command in commands]
            return [await runner.step(assistant(reply)) for reply in [*replies, "<answer>done</answer>"]]
        finally:
            await runner.close()

    return asyncio.run(episode())


def printed(results: Sequence[StepResult]) -> list[str]:
    return [result.messages[0].content for result in results[:-1]]


def test_container_gives_the_oracle_one_and_an_empty_agent_zero(tmp_path: Path) -> None:
    folder = one_task(tmp_path, solve='test "$(cat made)" = made && echo ok > out.txt')
    assert run(folder)[-1].reward == 0.0
    settings = SPEC.check_params({"folder": str(folder), "containers": "podman"})
    SPEC.check_resources(settings)
    runner: Any = SPEC.make(Task(env="harbor", params=settings, seed=seed_for("train", 0), split="train"))

    async def solved() -> StepResult:
        try:
            await runner.start()
            (call,) = runner.env.solve()
            await runner.step(assistant(runner.env.reply([call])))
            return await runner.step(assistant(runner.env.reply(runner.env.solve())))  # type: ignore[no-any-return]
        finally:
            await runner.close()

    result = asyncio.run(solved())
    assert (result.reward, result.success, result.terminated) == (1.0, True, True)


def test_container_keeps_folder_and_files_and_ends_processes(tmp_path: Path) -> None:
    commands = ["mkdir sub; cd sub; (while :; do echo x >> /app/tick; sleep 0.01; done) & echo on", "pwd; exit 3"]
    slow = ["sleep 60", "grep -c x /app/tick; sleep 0.2; grep -c x /app/tick"]
    shown = printed(run(one_task(tmp_path), *commands, *slow, command_timeout_s=2.0))
    assert shown[:3] == ["on", "/app/sub\n[exit code 3]", "[stopped: the time limit is 2 s]"]
    first, second = shown[3].split()
    assert first == second  # nothing writes any more


HOSTILE = {
    "writes the reward": "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt",
    "writes tests": "mkdir -p /tests; printf '#!/bin/sh\\necho 1 > /logs/verifier/reward.txt' > /tests/test.sh; "
    "chmod 555 /tests/test.sh /tests",
    "replaces programs": "rm /usr/bin/cat; printf '#!/bin/bash -p\\necho ok' > /usr/bin/cat; chmod +x /usr/bin/cat; "
    "mkdir -p /usr/local/bin; cp /usr/bin/cat /usr/local/bin/cat",
    "replaces folders": "mkdir /f; printf '#!/bin/bash -p\\necho ok' > /f/cat; chmod +x /f/cat; "
    "cp /usr/bin/ln /f; mv /usr/bin /old; /f/ln -s /f /usr/bin",
    "configures the loader": "mkdir -p /etc/profile.d; echo /app/x.so > /etc/ld.so.preload; "
    "echo 'cat() { echo ok; }' > /etc/profile; cp /etc/profile /etc/profile.d/x.sh",
    "removes its folder": "cd /; rm -rf /app; ln -s /tests /app",
    "ends its machine": "kill -9 -1; kill -9 1",
    "large sparse files": "for i in 1 2 3; do truncate -s 1G s$i; done; echo ok > out.txt",
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_hostile_agents_in_containers_earn_nothing(attack: str, tmp_path: Path) -> None:
    *_, last = run(one_task(tmp_path), HOSTILE[attack])
    assert (last.reward, last.success) == (0.0, False)


def test_container_leaves_nothing_behind(tmp_path: Path) -> None:
    run(one_task(tmp_path), "echo ok > out.txt")
    assert "turnwise-" not in podman("ps", "--all", "--format", "{{.Names}}").stdout


def test_container_without_a_reward_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(RewardFailure, match=r"wrote no /logs/verifier/reward\.txt"):
        run(one_task(tmp_path, test="true"))


def test_dockerfile_that_fails_in_a_container_is_one_line(tmp_path: Path) -> None:
    folder = one_task(tmp_path, dockerfile=STAGES + "RUN false\n")
    settings = SPEC.check_params({"folder": str(folder), "containers": "podman"})
    with pytest.raises(UserError, match=r"task: podman build failed: .*RUN false") as caught:
        SPEC.check_resources(settings)
    assert "\n" not in str(caught.value)


def test_refused_task_names_the_container_and_agents_refuse_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for split in ("train", "validation", "test"):
        settings = f'[metadata]\nsplit = "{split}"\n'
        write_task(tmp_path / "tasks" / split, dockerfile=STAGES, instruction=split, settings=settings)
    target = f"harbor:{tmp_path / 'tasks'}"
    assert main(["train", target, "--dry-run"]) == 2
    assert "To run it in a container, set env.params.containers podman." in capsys.readouterr().err
    program = tmp_path / "mini"
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    contained = ["--env.params.containers", "podman", "--agent", "mini-swe"]
    assert main(["train", target, *contained, "--dry-run"]) == 2
    assert "env.params.containers has an effect only with the tool shell." in capsys.readouterr().err
