"""Agents in containers of bubblewrap: a root of their own, own processes, and the network of the host."""

import asyncio
import json
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from episodes_for_tests import limits
from gateway_for_tests import RecordingPolicy, episode_key, full_contexts, open_gateway, says
from turnwise.gateway.agent_process import build_environment, split_command
from turnwise.gateway.agents import Access, AgentExit, CommandAgent
from work_for_tests import HANG_S, wait_until

CONTAINER = (
    "bwrap --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 "
    "--proc /proc --dev /dev --tmpfs /tmp --bind . /episode --chdir /episode "
    "--unshare-all --share-net --die-with-parent"
)
"""The command of docs/agents.md: of the host's files it has /usr and, as /episode, the episode's folder."""
PYTHON = "/usr/bin/python3"
ASK = """
import json, os, sys, urllib.request
task = json.load(open("task.json"))
assert task == json.loads(sys.argv[1])
body = {"model": "policy", "messages": [{"role": "user", "content": task["question"]}]}
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
answer = urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers))
reply = json.load(answer)["choices"][0]["message"]["content"]
open("notes.txt", "w").write(reply)
print(json.dumps({"reply": reply, "root": sorted(os.listdir("/")), "processes": os.getpid()}))
"""


@pytest.fixture(autouse=True)
def _bubblewrap() -> None:
    if shutil.which("bwrap") is None or not Path(PYTHON).exists():
        pytest.skip("bubblewrap or the system's Python is not installed")
    tried = subprocess.run([*shlex.split(CONTAINER), "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"bubblewrap does not work here: {tried.stderr.strip()}")


def contained(code: str) -> CommandAgent:
    return CommandAgent((*split_command(CONTAINER), PYTHON, "-c", code, "{task}"), build_environment(()))


def test_contained_agent_is_captured_with_exact_tokens(tmp_path: Path) -> None:
    policy = RecordingPolicy(says("hello"))

    async def run() -> tuple[AgentExit, list[object]]:
        async with open_gateway(policy) as gateway:
            episode = await gateway.open_episode(episode_key(), limits())
            access = Access(url=gateway.url, key=episode.bearer)
            found = await asyncio.wait_for(contained(ASK).run(access, {"question": "Who?"}, tmp_path), HANG_S)
            await gateway.close_episode(episode)
            return found, [(context, turn.action_ids) for context, turn in full_contexts(episode.turns())]

    found, captured = asyncio.run(run())
    assert found.program is not None
    seen = json.loads(found.program.output)
    assert seen["reply"] == (tmp_path / "notes.txt").read_text() == "hello"
    assert seen["root"] == ["bin", "dev", "episode", "lib", "lib64", "proc", "tmp", "usr"]
    assert seen["processes"] < 10  # numbered anew
    assert captured == [(context, completion.ids) for context, completion in policy.samples]


def test_cancelled_container_is_killed_with_its_processes(tmp_path: Path) -> None:
    """A child in a session of its own is found too. Inside, processes have other numbers: it is found by its name."""
    name = f"sleeper-{tmp_path.name}"
    child = f"import time; open('child', 'w').write('here'); time.sleep(600) # {name}"
    code = (
        "import subprocess, sys, time; "
        f"subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True); time.sleep(600)"
    )

    def running() -> list[Path]:
        return [each for each in Path("/proc").glob("[0-9]*/cmdline") if name.encode() in read_bytes(each)]

    async def run_and_cancel() -> None:
        task = asyncio.create_task(contained(code).run(Access(url="http://127.0.0.1:1", key="k"), None, tmp_path))
        async with asyncio.timeout(HANG_S):
            while not (tmp_path / "child").is_file():
                assert not task.done(), task.result()
                await asyncio.sleep(0.01)
        assert running()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    asyncio.run(run_and_cancel())
    assert wait_until(lambda: not running())


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it ended meanwhile
        return b""
