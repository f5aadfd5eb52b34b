"""Harbor folders are read: settings, Dockerfiles, splits, and the reasons why a task cannot run here."""

import re
from pathlib import Path
from typing import Any

import pytest

from harbor_for_tests import write_task, write_ten_tasks
from turnwise.core.errors import UserError
from turnwise.envs.adapters.harbor import installs
from turnwise.envs.adapters.harbor.dockerfile import Copy, read_dockerfile
from turnwise.envs.adapters.harbor.installs import check_script, simple_commands
from turnwise.envs.adapters.harbor.task_folder import load_tasks, strip_canary
from turnwise.envs.adapters.harbor.types import Unsupported
from turnwise.envs.registry import load_spec
from turnwise.envs.seeds import FIRST_SEED

SPEC = load_spec("harbor")


@pytest.fixture(autouse=True)
def debian(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which only these Debian packages are installed."""
    monkeypatch.setattr(installs, "is_system_package", {"bash", "jq"}.__contains__)


def problem(folder: Path) -> str:
    (task,) = load_tasks(str(folder)).unsupported
    return task.problem


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("FROM node:22", "environment/Dockerfile line 1: FROM node:22: node:22 is not a plain base image"),
        ("FROM python:2.7", "this Python is"),
        ("FROM ubuntu AS a\nFROM debian", "line 2: FROM debian: several stages"),
        ("FROM ubuntu\nRUN apt-get update && apt-get install -y jq ffmpeg", "ffmpeg is not installed"),
        ("FROM ubuntu\nRUN pip install nosuchpackage==1", "nosuchpackage==1 is not installed"),
        ("FROM ubuntu\nRUN pip install pydantic==0.1", "pydantic is installed here in version"),
        ("FROM ubuntu\nRUN pip install turnwise", "turnwise contains graders"),
        ("FROM ubuntu\nRUN pip install -r /app/requirements.txt", "only packages by name"),
        ("FROM ubuntu\nRUN curl -LsSf https://example.com/install.sh | sh", "there is no network"),
        ("FROM ubuntu\nRUN cd /app && npm install", "npm cannot install"),
        ("FROM ubuntu\nRUN --mount=type=cache true", "options and here-documents"),
        ("FROM ubuntu\nUSER app", "line 2: USER app: the sandbox does not have it"),
        ("FROM ubuntu\n# services\nEXPOSE 80", "line 3: EXPOSE 80"),
        ("FROM ubuntu\nCOPY --from=ghcr.io/uv /uv /bin/", "--from is not supported"),
        ("FROM ubuntu\nADD https://example.com/x /x", "there is no network"),
        ("FROM ubuntu\nCOPY ../tests /app", "../tests is not in environment/"),
        ('FROM ubuntu\nENTRYPOINT ["server"]', "ENTRYPOINT"),
        ("RUN true", "it has no FROM"),
    ],
)
def test_dockerfiles_that_cannot_be_honoured_are_refused(lines: str, message: str, tmp_path: Path) -> None:
    write_task(tmp_path / "task", dockerfile=lines)
    assert message in problem(tmp_path) and "\n" not in problem(tmp_path)
    with pytest.raises(UserError, match=r"1 of 1 task cannot run here\. task: ") as error:
        SPEC.check_resources(SPEC.check_params({"folder": str(tmp_path)}))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("[[steps]]\nname = 'a'", "steps: tasks of several steps"),
        ("[environment]\ngpus = 1", "the sandbox has no GPUs"),
        ("[environment]\nos = 'windows'", "only linux"),
        ("[verifier]\nenvironment_mode = 'separate'", "only shared"),
        ("[verifier]\ntimeout_sec = -1", "verifier.timeout_sec"),
        ("[agent]\ntimeout_sec = nan", "agent.timeout_sec"),
        ("[agent]\nuser = 'app'", "agent.user"),
        ("[verifier.env]\nKEY = '${OPENAI_API_KEY}'", "verifier.env.KEY: variables of this machine"),
        ("[metadata]\nsplit = 'dev'", "'dev' is not train"),
        ("[environment]\ndocker_image = 'swe/image:1'", "environment.docker_image"),
        ("[environment", "it is not valid TOML"),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused(settings: str, message: str, tmp_path: Path) -> None:
    write_task(tmp_path / "task", settings=settings)
    assert message in problem(tmp_path)


def test_tests_that_install_something_are_refused(tmp_path: Path) -> None:
    write_task(tmp_path / "task", test="apt-get update\napt-get install -y curl\nuvx pytest")
    assert problem(tmp_path) == (
        "tests/test.sh: apt-get install -y curl: curl is not installed on this machine: install it here first"
    )


def test_unsupported_tasks_can_be_left_out(tmp_path: Path) -> None:
    write_ten_tasks(tmp_path)
    write_task(tmp_path / "eleven", dockerfile="FROM node")
    with pytest.raises(UserError, match=r"1 of 11 tasks cannot run here\. eleven: .* set env.params.skip_unsupported"):
        SPEC.check_resources({"folder": str(tmp_path)})
    params = SPEC.params_model.model_validate({"folder": str(tmp_path), "skip_unsupported": True})
    SPEC.check_resources({"folder": str(tmp_path), "skip_unsupported": True})
    (note,) = SPEC.text_env.notes(params)  # type: ignore[union-attr]
    assert note.startswith("note: eleven is left out: environment/Dockerfile line 1: FROM node")


def test_further_images_are_taken_at_the_users_word(tmp_path: Path) -> None:
    write_task(tmp_path / "task", dockerfile="FROM registry/base:1\nRUN true")
    assert len(load_tasks(str(tmp_path), ("registry/base:1",)).tasks) == 1


def test_links_out_of_the_task_are_refused(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task")
    (task / "environment" / "secret").symlink_to("/etc/passwd")
    assert problem(tmp_path) == "environment/secret: it leads out of the task's folder"


def test_equal_tasks_are_in_one_split(tmp_path: Path) -> None:
    for number in range(12):
        write_task(tmp_path / f"{number}-{number % 4}", instruction=f"Task {number % 4}")
    tasks = load_tasks(str(tmp_path))
    keys = [task.key for split in FIRST_SEED for task in tasks.splits[split]]
    assert len(keys) == len(set(keys)) == 4
    assert all(tasks.splits.values())


def test_a_task_in_two_splits_is_an_error(tmp_path: Path) -> None:
    write_task(tmp_path / "a", settings='[metadata]\nsplit = "train"')
    write_task(tmp_path / "b", settings='[metadata]\nsplit = "test"')
    with pytest.raises(UserError, match="b and a are the same task in the splits test and train"):
        load_tasks(str(tmp_path))


def test_splits_of_the_metadata_hold(tmp_path: Path) -> None:
    tasks = load_tasks(str(write_ten_tasks(tmp_path)))
    assert {split: len(found) for split, found in tasks.splits.items()} == {"train": 6, "validation": 2, "test": 2}


@pytest.mark.parametrize(("folder", "message"), [("none", "is not a folder"), ("empty", "has no Harbor task")])
def test_folders_without_tasks_are_an_error(folder: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=message):
        load_tasks(str(tmp_path / folder))


def test_a_task_may_contain_a_file_named_like_the_settings(tmp_path: Path) -> None:
    write_task(tmp_path / "some" / "task", files={"inner/task.toml": "", "inner/instruction.md": ""})
    assert [task.name for task in load_tasks(str(tmp_path)).tasks] == ["some/task"]
    assert [task.name for task in load_tasks(str(tmp_path / "some" / "task")).tasks] == ["task"]


def test_folders_that_agents_can_read_are_an_error() -> None:
    with pytest.raises(UserError, match="in a folder that agents can read"):
        load_tasks("/usr/share/tasks")


def copied(tmp_path: Path, lines: str, files: dict[str, str]) -> dict[str, Any]:
    folder = write_task(tmp_path / "task", dockerfile=lines, files=files) / "environment"
    steps = read_dockerfile(folder / "Dockerfile").steps
    entries = [entry for step in steps if isinstance(step, Copy) for entry in step.entries]
    return {entry.path: entry.data.decode() for entry in entries if entry.data is not None}


@pytest.mark.parametrize(
    ("instruction", "paths"),
    [
        ("COPY a.txt b.txt", ["/w/b.txt"]),
        ("COPY a.txt /x/", ["/x/a.txt"]),
        ("COPY a.txt .", ["/w/a.txt"]),
        ("COPY d /x", ["/x/b.txt", "/x/e/c.txt"]),
        ("COPY d/*.txt a.txt /x/", ["/x/b.txt", "/x/a.txt"]),
        ('COPY ["a.txt", "d/b.txt", "/x/"]', ["/x/a.txt", "/x/b.txt"]),
        ("ENV D=/x\nCOPY a.txt ${D}/y", ["/x/y"]),
        ("ARG D\nCOPY a.txt ${E:-/z}/y", ["/z/y"]),
    ],
)
def test_copy_writes_where_docker_does(instruction: str, paths: list[str], tmp_path: Path) -> None:
    files = {"a.txt": "a", "d/b.txt": "b", "d/e/c.txt": "c"}
    assert list(copied(tmp_path, f"FROM ubuntu\nWORKDIR w\n{instruction}", files)) == paths


def test_instructions_hide_their_canary() -> None:
    assert strip_canary("<!-- canary 123 -->\n# canary\n\nDo it.\n# canary\n") == "Do it.\n# canary\n"


def test_commands_are_found_outside_of_here_documents() -> None:
    script = "a && b | c\nif d; then\n  e \\\n  f\nfi\ncat > README <<'EOF'\npip install x\nEOF\n# pip install y\ng"
    assert [command.split() for command in simple_commands(script)] == [
        ["a"], ["b"], ["c"], ["if", "d"], ["then"], ["e", "f"], ["fi"], ["cat", ">", "README", "<<'EOF'"], ["g"],
    ]  # fmt: skip
    assert check_script("if ! sudo apt-get install -qy jq=1.7; then exit 1; fi", "x") == set()
    assert check_script("python3 -m pip install 'pydantic>=2'", "x") == {"pydantic"}
    assert check_script("curl -s http://localhost:80/ > out", "x") == set()
    with pytest.raises(Unsupported, match=re.escape("x: git clone https://example.com/y: there is no network")):
        check_script("cd /tmp; git clone https://example.com/y", "x")
