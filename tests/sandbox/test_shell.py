"""Shells: commands on a root of their own, and files that move to another session."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from turnwise.sandbox.files import FileEntry, Image, pack
from turnwise.sandbox.host import Sandbox
from turnwise.sandbox.shell import CLEAN_PATH, DiskTooFull, Shell, open_shell, shell_limits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")
LIMITS = shell_limits(memory_mb=512, disk_mb=32)
Opener = Callable[..., Awaitable[Shell]]


def with_shells(test: Callable[[Opener], Awaitable[Any]]) -> Any:
    """Run a test with a function that opens shells."""

    async def run() -> Any:
        async with await Sandbox.start(LIMITS, packages=(), own_root=True) as box:

            async def opener(**image: Any) -> Shell:
                return await open_shell(box.session(), Image(**image), LIMITS)

            return await test(opener)

    return asyncio.run(run())


async def output(shell: Shell, command: str, **options: Any) -> str:
    return (await shell.run(command, **{"timeout_s": 20.0, **options})).output


def test_shell_keeps_folder_and_files_between_commands() -> None:
    async def test(opener: Opener) -> None:
        shell = await opener(workdir="/app", env={"NAME": "Ann"}, archive=pack([FileEntry(path="/app/a", data=b"1\n")]))
        assert await output(shell, "pwd; cat a; echo $NAME; mkdir -p b && cd b") == "/app\n1\nAnn\n"
        assert await output(shell, "pwd; echo x > ../a; false") == "/app/b\n"
        result = await shell.run("cat ../a; exit 3", timeout_s=20)
        assert (result.output, result.exit_code) == ("x\n", 3)
        assert await output(shell, "python3 -c 'print(6 * 7)'; printf 'b\\na\\n' | sort | sed s/a/c/") == "42\nc\nb\n"

    with_shells(test)


def test_shell_sees_nothing_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    monkeypatch.setenv("SHELL_TEST_SECRET", "secret")

    async def test(opener: Opener) -> None:
        shell = await opener()
        commands = f"cat {secret}; env; ls /proc; cat /dev/tcp/127.0.0.1/80; touch /usr/bin/x; find / -name 'turnwise*'"
        text = await output(shell, commands)
        assert "secret" not in text.replace(str(secret), "")
        assert "turnwise" not in text.replace(str(secret), "").replace("/usr/share", "")
        assert "Read-only file system" in text

    with_shells(test)


def test_time_limit_ends_the_command_and_keeps_the_files() -> None:
    async def test(opener: Opener) -> None:
        shell = await opener()
        result = await shell.run("echo a > f; trap '' TERM INT; (sleep 60 &); echo b; sleep 60", timeout_s=1)
        assert (result.timed_out, result.output, result.lost) == (True, "b\n", "")
        assert await output(shell, "cat f") == "a\n"

    with_shells(test)


def test_processes_end_with_their_command() -> None:
    async def test(opener: Opener) -> None:
        shell = await opener()
        result = await shell.run(
            "(setsid bash -c 'while :; do date +%N > /tmp/beat; done' >&2 &); sleep 0.2", timeout_s=9
        )
        assert not result.timed_out
        first = await output(shell, "cat /tmp/beat")
        await asyncio.sleep(0.2)
        assert await output(shell, "cat /tmp/beat") == first

    with_shells(test)


def test_endless_output_is_truncated_in_the_middle() -> None:
    async def test(opener: Opener) -> None:
        shell = await opener()
        text = await output(shell, "seq 1 1000000", max_chars=1000)
        assert text.startswith("1\n2\n") and text.endswith("999999\n1000000\n") and len(text) < 1100

    with_shells(test)


def test_killed_session_starts_again_from_its_image() -> None:
    async def test(opener: Opener) -> None:
        shell = await opener(workdir="/app", archive=pack([FileEntry(path="/app/a", data=b"1\n")]))
        eat = "import mmap, time\nmaps = [bytearray(60 << 20) for _ in range(5)]\ntime.sleep(9)"
        result = await shell.run(f"echo 2 > a; for i in 1 2 3; do python3 -c '{eat}' & done; wait", timeout_s=20)
        assert "more than 512 MiB of memory" in result.lost
        assert await output(shell, "cat a") == "1\n"

    with_shells(test)


def test_saved_files_load_into_another_session() -> None:
    async def test(opener: Opener) -> None:
        first, second = await opener(workdir="/app"), await opener(workdir="/app")
        await first.run(
            "echo 1 > a; chmod 750 a; ln -s a b; mkdir -p c/d /new; echo 2 > /new/é; mkfifo pipe; rm -f c/none; "
            "mkdir /closed; echo 3 > /closed/file; chmod 0 /closed/file /closed; touch $'\\xff'; "
            "mkdir /tests; echo x > /tests/y; head -c 3000000 /dev/urandom > big; sha256sum big > sum",
            timeout_s=20,
        )
        await second.load(await first.save(without=["/tests"]))
        text = await output(second, "cat b; stat -c %a a; ls c; cat /new/é; sha256sum -c --quiet sum")
        assert text == "1\n750\nd\n2\n"
        closed = (
            "stat -c %a /closed; chmod 700 /closed; stat -c %a /closed/file; chmod 600 /closed/file; cat /closed/file"
        )
        assert await output(second, f"{closed}; ls $'\\xff' | wc -l") == "0\n0\n3\n1\n"
        assert await output(second, "ls -d /tests pipe 2>&1 | grep -c 'No such'") == "2\n"

    with_shells(test)


def test_saved_files_replace_nothing_of_the_machine() -> None:
    async def test(opener: Opener) -> None:
        first, second = await opener(), await opener()
        await first.run(
            "mkdir /fake; printf '#!/bin/sh\\necho fake' > /fake/cat; chmod +x /fake/cat; "
            "cp /fake/cat /usr/local/bin/cat; "
            "cp /fake/cat /opt/python/bin/cat; cp /fake/cat /opt/python/bin/python3; mv /bin /old; ln -s /fake /bin;"
            "echo /fake/x.so > /etc/ld.so.preload; echo x > /etc/passwd; rm -f /opt/python/bin/python3",
            timeout_s=20,
        )
        await second.load(await first.save(), origin="agent")
        text = await output(
            second,
            "echo ok | cat; /bin/echo 1; python3 -c 'print(2)'; whoami; ls /etc/ld.so.preload",
            env={"PATH": CLEAN_PATH},
        )
        assert text.splitlines()[:4] == ["ok", "1", "2", "agent"] and "No such file" in text

    with_shells(test)


@pytest.mark.parametrize(
    "command",
    ["head -c 30M /dev/urandom > /a", "truncate -s 30M /a; truncate -s 30M /b", "mkdir -p $(printf 'a/%.0s' {1..200})"],
)
def test_file_systems_that_are_too_large_are_not_saved(command: str) -> None:
    async def test(opener: Opener) -> None:
        shell = await opener()
        await shell.run(command, timeout_s=20)
        with pytest.raises(DiskTooFull):
            await shell.save()

    with_shells(test)


def test_loading_does_not_follow_links() -> None:
    async def test(opener: Opener) -> None:
        shell = await opener()
        entries = [
            FileEntry(path="/link", target="/safe"),
            FileEntry(path="/link/file", data=b"bad"),
            FileEntry(path="/../../safe/up", data=b"bad"),
            FileEntry(path="/usr/bin/ls", data=b"bad"),
        ]
        await shell.run("mkdir /safe", timeout_s=20)
        await shell.load(pack(entries))
        assert await output(shell, "ls /safe") == ""
        assert await shell.read_file("/link/file", 10) is None

    with_shells(test)
