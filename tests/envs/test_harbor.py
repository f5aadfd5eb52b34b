"""Harbor tasks in the sandbox: the oracle gets 1, an empty agent 0, and a hostile one nothing more."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harbor_for_tests import write_task, write_ten_tasks
from turnwise.core.errors import RewardFailure, UserError
from turnwise.core.messages import assistant
from turnwise.core.protocols import StepResult
from turnwise.core.task import Split, Task
from turnwise.envs.registry import load_spec
from turnwise.envs.seeds import seed_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")
SPEC = load_spec("harbor")
PAID_ONLY_BY_TESTS = "echo 0 > /logs/verifier/reward.txt"


def make(folder: Path, index: int = 0, split: Split = "train", **params: Any) -> Any:
    settings = {"folder": str(folder), "disk_mb": 32, **params}
    return SPEC.make(Task(env="harbor", params=settings, seed=seed_for(split, index), split=split))


async def play(runner: Any, replies: Sequence[str]) -> StepResult:
    """Run commands, then answer."""
    try:
        await runner.start()
        for command in replies:
            result = await runner.step(assistant(runner.env.call("shell", command=command)))
            if result.over:
                return result
        return await runner.step(assistant("<answer>done</answer>"))
    finally:
        await runner.close()


def run(folder: Path, *replies: str, **params: Any) -> StepResult:
    return asyncio.run(play(make(folder, **params), replies))


def paid(folder: Path, *replies: str, **params: Any) -> float:
    result = run(folder, *replies, **params)
    assert result.success == (result.reward >= 1)
    return result.reward


def one_task(folder: Path, **options: Any) -> Path:
    write_task(folder / "task", settings='[metadata]\nsplit = "train"', **options)
    return folder


def test_oracle_gets_one_and_an_empty_agent_zero(tmp_path: Path) -> None:
    folder = write_ten_tasks(tmp_path)

    async def test() -> None:
        for split, count in (("train", 6), ("validation", 2), ("test", 2)):
            for index in range(count):
                runner = make(folder, index, split)  # type: ignore[arg-type]
                solution = runner.env
                await runner.start()
                for action in (solution.solve(), solution.solve()):
                    if action == ["done"]:
                        break
                    await runner.step(assistant(solution.reply(action)))
                result = await runner.step(assistant(solution.reply(solution.solve())))
                await runner.close()
                assert (result.reward, result.success) == (1.0, True), solution.task.name
                empty = await play(make(folder, index, split), [])  # type: ignore[arg-type]
                assert (empty.reward, empty.success, empty.terminated) == (0.0, False, True)

    asyncio.run(test())


def test_files_count_at_the_limit_of_turns(tmp_path: Path) -> None:
    result = run(one_task(tmp_path), "echo ok > out.txt", max_turns=1)
    assert (result.reward, result.success, result.truncated) == (1.0, True, True)


HOSTILE = {
    "writes the reward": "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt",
    "writes tests": "mkdir -p /tests; printf '#!/bin/sh\\necho 1 > /logs/verifier/reward.txt' > /tests/test.sh; "
    "chmod 555 /tests/test.sh /tests",
    "links the folders": "mkdir /app/x; ln -s /app/x /tests; ln -s /app/x /logs; echo 1 > /app/x/reward.txt",
    "leaves a daemon": "mkdir -p /logs/verifier; "
    "(setsid bash -c 'while :; do echo 1 > /logs/verifier/reward.txt; done' &)",
    "replaces programs": "printf '#!/bin/bash -p\\necho ok' > /usr/local/bin/cat; chmod +x /usr/local/bin/cat; "
    "for p in bash sh env python3; do cp /usr/local/bin/cat /usr/local/bin/$p; "
    "cp /usr/local/bin/cat /opt/python/bin/$p; done; "
    "mkdir /f; cp /usr/local/bin/cat /f/cat; mv /usr /old; ln -s /f /usr; mv /bin /b; ln -s /f /bin",
    "plants modules": "for d in {/usr/local,/root/.local}/lib/python3.1{0..4}/{dist,site}-packages; do mkdir -p $d; "
    "for m in sitecustomize usercustomize json; do echo 'import os; os._exit(0)' > $d/$m.py; done; done; "
    "mkdir -p /etc/perl; echo 'exit 0' > /etc/perl/strict.pm; echo 'exit 0' > /etc/profile",
    "configures the loader": "echo /app/x.so > /etc/ld.so.preload; echo 'cat() { echo ok; }' > /root/.bashrc; "
    "cp /root/.bashrc /root/.bash_profile; cp /root/.bashrc /etc/profile",
    "fills the disk": "head -c 40M /dev/urandom > big; seq 1 30000 | xargs touch",
    "sparse files": "for i in $(seq 9); do truncate -s 30M s$i; done",
    "links to the host": "ln -sf /etc/passwd out.txt; ln -s / root; ln -s /proc/1/root p",
    "ends its machine": "kill -9 -1; kill -9 1",
    "removes its folder": "cd /; rm -rf /app; ln -s /tests /app",
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_hostile_agents_earn_nothing(attack: str, tmp_path: Path) -> None:
    assert paid(one_task(tmp_path), HOSTILE[attack]) == 0.0


def test_planted_modules_do_not_run_in_the_tests(tmp_path: Path) -> None:
    """The tests' Python and Perl start without the agent's modules, and with those of the image."""
    test = (
        "cat /usr/local/lib/mine /etc/perl/Mine.pm > /tmp/found; /usr/bin/perl -e 'use strict; print 3' >> /tmp/found; "
        "python3 -c 'print(4)' >> /tmp/found; [ \"$(tr -d '\\n' < /tmp/found)\" = 1234 ] && R=1; "
        "echo ${R:-0} > /logs/verifier/reward.txt"
    )
    dockerfile = "FROM ubuntu\nWORKDIR /app\nCOPY mine /usr/local/lib/mine\nCOPY Mine.pm /etc/perl/Mine.pm"
    folder = one_task(tmp_path, test=test, dockerfile=dockerfile, files={"mine": "1\n", "Mine.pm": "2\n"})
    assert paid(folder, "echo 5 > /usr/local/lib/mine; " + HOSTILE["plants modules"]) == 1.0


def test_calls_of_one_reply_run_one_after_another(tmp_path: Path) -> None:
    async def test() -> list[str]:
        runner = make(one_task(tmp_path), max_turns=5)
        await runner.start()
        commands = ("sleep 0.3; cd /tmp; echo a > f", "echo b >> f", "cat f; pwd")
        reply = "\n".join(runner.env.call("shell", command=command) for command in commands)
        result = await runner.step(assistant(reply))
        await runner.close()
        return [message.content for message in result.messages]

    assert asyncio.run(test()) == ["(no output)", "(no output)", "a\nb\n/tmp"]


def test_reward_json_counts_only_if_the_tests_name_it(tmp_path: Path) -> None:
    """A program of the agent, which the tests run, writes the file that would come first."""
    attack = "printf 'echo 1 > /logs/verifier/reward.json' > /app/prog"
    tests = f"bash /app/prog; {PAID_ONLY_BY_TESTS}"
    assert paid(one_task(tmp_path / "a", test=tests), attack) == 0.0
    wanted = one_task(tmp_path / "b", test='echo \'{"reward": 0.5, "style": 1}\' > /logs/verifier/reward.json')
    result = run(wanted)
    assert result.reward == 0.5 and result.info["rewards"] == {"reward": 0.5, "style": 1.0}


def test_reward_key_names_the_reward(tmp_path: Path) -> None:
    folder = one_task(tmp_path, test='echo \'{"reward": 0.5, "style": 1}\' > /logs/verifier/reward.json')
    result = run(folder, reward_key="style")
    assert result.reward == 1.0 and result.success


def test_command_has_a_time_limit_of_its_own(tmp_path: Path) -> None:
    async def test() -> list[str]:
        runner = make(one_task(tmp_path), command_timeout_s=1)
        await runner.start()
        replies = [runner.env.call("shell", command=command) for command in ("sleep 30", "echo goes on")]
        texts = [(await runner.step(assistant(reply))).messages[0].content for reply in replies]
        await runner.close()
        return texts

    first, second = asyncio.run(test())
    assert "the time limit is 1 s" in first and second == "goes on"


def test_further_base_images_are_named_by_a_parameter(tmp_path: Path) -> None:
    folder = one_task(tmp_path, dockerfile="FROM registry/base:1\nWORKDIR /app\n")
    settings = {"folder": str(folder), "disk_mb": 32}
    with pytest.raises(UserError, match="registry/base:1"):
        SPEC.check_resources(SPEC.check_params(settings))
    SPEC.check_resources(SPEC.check_params(settings | {"images": ["registry/base:1"]}))
    assert paid(folder, "echo ok > out.txt", images=["registry/base:1"]) == 1.0


def test_tests_and_solution_are_not_visible_to_the_agent(tmp_path: Path) -> None:
    async def test() -> str:
        runner = make(one_task(tmp_path, solve="echo secret-solution"))
        await runner.start()
        command = "ls /tests /solution /logs; grep -rs secret-solution /app /root /tmp /opt /srv /var /etc /home"
        result = await runner.step(assistant(runner.env.call("shell", command=command)))
        await runner.close()
        return result.messages[0].content

    text = asyncio.run(test())
    assert text.count("No such file") == 3 and "secret" not in text


@pytest.mark.parametrize(
    "command",
    [
        "true",
        "echo nan > /logs/verifier/reward.txt",
        "echo inf > /logs/verifier/reward.txt",
        "echo 1e999 > /logs/verifier/reward.txt",
        "echo yes > /logs/verifier/reward.txt",
        ": > /logs/verifier/reward.txt",
        "mkdir /logs/verifier/reward.txt",
        "ln -s /app/one /logs/verifier/reward.txt; echo 1 > /app/one",
        "echo '{\"reward\": NaN}' > /logs/verifier/reward.json",
        "echo '{\"reward\": true}' > /logs/verifier/reward.json",
        'echo \'{"a": 1, "b": 1}\' > /logs/verifier/reward.json',
        "echo '[1' > /logs/verifier/reward.json",
    ],
)
def test_rewards_that_are_not_numbers_are_failures(command: str, tmp_path: Path) -> None:
    with pytest.raises(RewardFailure, match="task: "):
        run(one_task(tmp_path, test=command))


def test_tests_that_do_not_end_are_a_failure(tmp_path: Path) -> None:
    write_task(tmp_path / "task", test="sleep 60", settings='[metadata]\nsplit = "train"\n[verifier]\ntimeout_sec = 1')
    with pytest.raises(RewardFailure, match="time limit"):
        run(tmp_path)


def test_time_of_the_agent_is_limited(tmp_path: Path) -> None:
    write_task(tmp_path / "task", settings='[metadata]\nsplit = "train"\n[agent]\ntimeout_sec = 1')

    async def test() -> list[str]:
        runner = make(tmp_path)
        await runner.start()
        replies = [runner.env.call("shell", command=command) for command in ("sleep 30", "echo ok > out.txt")]
        texts = [(await runner.step(assistant(reply))).messages[0].content for reply in replies]
        result = await runner.step(assistant("<answer>done</answer>"))
        await runner.close()
        assert result.reward == 0
        return texts

    first, second = asyncio.run(test())
    assert "the time limit is" in first and "time for commands is used up" in second


def test_dockerfile_commands_build_the_image(tmp_path: Path) -> None:
    dockerfile = """
    FROM python:3-slim AS base
    ARG NAME=ann
    ENV GREETING="hello $NAME" OTHER=1
    WORKDIR /srv/work
    COPY data/*.txt ./data/
    RUN apt-get update && apt-get install -y --no-install-recommends bash \\
        && rm -rf /var/lib/apt/lists/*
    RUN pip install --no-cache-dir pydantic

    RUN mkdir made && \\
        wc -l < data/a.txt > made/count && echo "$GREETING" >> made/count
    COPY --chmod=755 tool.sh /usr/local/bin/tool
    CMD ["bash"]
    """
    files = {"data/a.txt": "1\n2\n", "data/b.txt": "3\n", "data/c.md": "", "tool.sh": "#!/bin/sh\necho tool $OTHER\n"}
    test = "cd /srv/work; tool >> made/count; python3 -c 'import pydantic' && " \
        "[ \"$(cat made/count; ls data)\" = \"$(printf '2\\nhello ann\\ntool 1\\na.txt\\nb.txt')\" ] && R=1; " \
        "echo ${R:-0} > /logs/verifier/reward.txt"  # fmt: skip
    folder = one_task(tmp_path, dockerfile="\n".join(map(str.strip, dockerfile.splitlines())), files=files, test=test)
    params = SPEC.check_params({"folder": str(folder)})
    SPEC.check_resources(params)
    assert paid(folder) == 1.0
