"""Run the fenced blocks of a documentation page, in order and in one folder, with settings that make them short."""

import argparse
import ast
import asyncio
import importlib
import io
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pages_for_tests import ROOT, Block
from turnwise.cli.main import main
from turnwise.config.schema import Config
from turnwise.models.loading.catalogue import model_names
from turnwise.models.loading.hub import is_hub_name
from turnwise.models.loading.load import LoadedModel, load_model
from turnwise.run import load_policy, sft, train
from turnwise.run.evaluation import plan
from turnwise.settings.section import Section

LIMITS = {
    "model.warmup_steps": 0,
    "rollout.groups": 2,
    "rollout.group_size": 2,
    "rollout.max_new_tokens": 6,
    "rollout.max_tokens": 512,
    "train.steps": 1,
    "train.mini_batch": 2,
    "sft.count": 4,
    "sft.epochs": 1,
    "eval.episodes": 2,
    "selfplay.opponent.ladder_games": 2,
    "critic.updates": 1,
    "critic.batch": 4,
    "algo.estimator.states": 4,
}
"""Largest values with which documented commands run, after they were checked with their own."""
DESCRIBES = {"rollout.max_new_tokens": 256}
"""Limits of runs whose replies describe states: a turn must have room for that."""
STOPS_EARLY = {"sft.count": 64, "train.steps": 2}
"""Limits of runs that their page stops by --max-minutes, to resume them."""
EARLY_MINUTES = 0.1
LAST_TOKENS = range(256, 1590)
"""Tokens of tiny that end a turn here too, five of six: untrained, it would sample rollout.max_new_tokens of them."""

ENDPOINT = re.compile(r"http://localhost:8000/v1\b")
UNMET = {
    "hub cannot be reached": "a model of the Hugging Face hub",
    "no recorded successful episode": "a run that has learnt",
    "needs a package that is not installed": "an optional package",
}
"""Errors of commands that are right but cannot end here -> what they need."""
PLACEHOLDER_FOLDERS = ("FOLDER", "INDEX")
"""Results of commands that may appear several times on a page; each command starts without them."""
ENV_FILE = '''\
import turnwise as tw


class GuessNumber(tw.TextEnv):
    """I think of a number between 1 and 10."""

    max_turns = 2

    def reset(self, rng):
        self.secret = rng.randint(1, 10)
        return "Guess (1-10)."

    def step(self, action):
        return tw.won("Correct!") if int(action) == self.secret else tw.goes_on("no")
'''
CONVERSATION = (
    '{"messages": [{"role": "user", "content": "Snow?"}, {"role": "assistant", "content": "<answer>white</answer>"}]}\n'
)
FILES = {
    "my_env.py": ENV_FILE,
    "chats.jsonl": CONVERSATION,
    "talks.jsonl": CONVERSATION,
    "notes.md": "# Notes\n\nOpen a file, then read it.\n",
    "docs/reading.md": "# Reading\n\nHow to read a file: open it.\n",
    "rows.jsonl": '{"text": "A file is closed after it was read."}\n',
}
"""Files of the reader that the pages name."""


class CheckedOnly(BaseException):
    """The command needs what is not here, such as a large model. It was checked up to there."""


class ArgumentsAccepted(BaseException):
    """A benchmark's parser accepted its arguments."""


def shorten(config: Config) -> Config:
    """Return the configuration with every number at its limit or below."""
    name = config.model.name
    if name != "tiny" and (name in model_names() or (is_hub_name(name) and not Path(name).exists())):
        raise CheckedOnly(name)
    limits, minutes = LIMITS, config.train.max_minutes
    if config.env.params.get("reasoning", "free") != "free":
        limits = limits | DESCRIBES
    if minutes is not None and minutes < EARLY_MINUTES:
        limits = limits | STOPS_EARLY
        config = config.model_copy(update={"train": config.train.model_copy(update={"max_minutes": 1e-6})})
    for key, limit in limits.items():
        config = lower(config, key.split("."), limit)
    return config


AnySection = TypeVar("AnySection", bound=Section)


def lower(section: AnySection, path: Sequence[str], limit: int) -> AnySection:
    """Lower a number to its limit, unless another alternative is chosen, which does not have it."""
    name, *rest = path
    if name not in type(section).model_fields:
        return section
    value = getattr(section, name)
    return section.model_copy(update={name: lower(value, rest, limit) if rest else min(value, limit)})


def make_runs_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten each run and evaluation once its own settings have been checked."""
    resolve = plan.resolve

    def shorten_run(config: Config) -> Config:
        is_resumed = config.record.name is not None and Path(config.record.folder, config.record.name).exists()
        return resolve(config if is_resumed else shorten(config))

    def load_terse(name: str, **options: Any) -> LoadedModel:
        loaded = load_model(name, **options)
        return replace(loaded, stop_ids=(*loaded.stop_ids, *LAST_TOKENS))

    monkeypatch.setattr(load_policy, "load_model", load_terse)
    monkeypatch.setattr(train, "resolve", shorten_run)
    monkeypatch.setattr(sft, "resolve", shorten_run)
    monkeypatch.setattr(plan, "resolve", lambda config: resolve(shorten(config)))


@dataclass(kw_only=True)
class PageRunner:
    """Runs the blocks of one page in `folder`, which is the working directory."""

    folder: Path
    endpoint: str
    """URL of an endpoint that answers, in place of the one that pages name."""
    copy_placeholder: Callable[[str, Sequence[str]], None]
    """(word, command) -> creates the run or folder that a placeholder such as RUN stands for."""
    monkeypatch: pytest.MonkeyPatch
    not_run: list[str] = field(default_factory=list)
    """Commands that were checked only, each with the reason."""
    not_made: set[str] = field(default_factory=set)
    """Names of the runs that these commands would have made."""
    namespace: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})

    def __post_init__(self) -> None:
        for name, text in FILES.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)
        (self.folder / "runs").mkdir()
        shutil.copytree(ROOT / "docs/examples", self.folder / "docs/examples")

    def write_files(self, blocks: Sequence[Block]) -> None:
        """Write the blocks that are files, for the commands of the page."""
        for block in blocks:
            if block.file is not None:
                (self.folder / block.file).write_text(block.text)
                self.monkeypatch.delitem(sys.modules, Path(block.file).stem, raising=False)

    def run(self, block: Block) -> None:
        if block.not_run is not None:
            self.not_run.append(f"{block.source}: {block.not_run}")
        elif block.language == "bash":
            for command in split_commands(block.text):
                self.run_command(command, block)
        elif block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "python":
            self.run_python(block)

    def run_python(self, block: Block) -> None:
        """Run the block in the page's namespace; import one that is a file, in a namespace of its own."""
        code = compile(block.text, f"<{block.source}>", "exec")  # like the cell of a notebook, which is in no file
        try:
            exec(code, {"__name__": "imported"} if block.file else self.namespace)
        except CheckedOnly as need:
            self.not_run.append(f"{block.source}: needs {need}")

    def run_command(self, command: str, block: Block) -> None:
        words = shlex.split(ENDPOINT.sub(self.endpoint, command), comments=True)
        while words and (assignment := re.fullmatch(r"([A-Z_]+)=(.*)", words[0])):
            self.monkeypatch.setenv(assignment[1], assignment[2])
            words = words[1:]
        if not words:
            return
        check = {"turnwise": self.run_turnwise, "python": self.run_script, **CHECKED}.get(words[0])
        assert check is not None, f"{words[0]}: tests/blocks_for_tests.py cannot run it; mark the block as not run"
        try:
            if missing := self.not_made & {Path(word).name for word in words}:
                raise CheckedOnly(f"the run {missing.pop()}")
            check(words[1:])
        except CheckedOnly as need:
            self.not_run.append(f"{block.source}: {command}: needs {need}")
            self.not_made.update(name for option, name in pairwise(words) if option == "--name")

    def run_turnwise(self, words: Sequence[str]) -> None:
        for word in words:
            self.copy_placeholder(word, words)
        output = io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdin", io.StringIO())
            patch.setattr(sys, "stderr", output)
            code = main(words)
        if code == 2 and (needs := [need for error, need in UNMET.items() if error in output.getvalue()]):
            raise CheckedOnly(needs[0])
        assert code == 0, output.getvalue()[-2000:]

    def run_script(self, words: Sequence[str]) -> None:
        """Run a script of the page; of the repository's benchmarks only the parser."""
        if words[0].startswith("benchmarks/"):
            check_benchmark(words)
            return
        output = self.folder / words[words.index(">") + 1] if ">" in words else None
        arguments = words[: words.index(">")] if ">" in words else words
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        if output is not None:
            output.write_text(done.stdout)


def split_commands(text: str) -> list[str]:
    """Return the commands of a block; a backslash at the end of a line continues it."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def check_benchmark(words: Sequence[str]) -> None:
    """Check that a benchmark imports and accepts its arguments; it would run for minutes, or need a GPU."""
    parse = argparse.ArgumentParser.parse_args

    def parse_and_stop(parser: argparse.ArgumentParser, *given: Any, **named: Any) -> None:
        parse(parser, *given, **named)
        raise ArgumentsAccepted

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        patch.setattr(sys, "argv", [words[0], *words[1:]])
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
        with pytest.raises(ArgumentsAccepted):
            runpy.run_path(str(ROOT / words[0]), run_name="__main__")


def check_pip(words: Sequence[str]) -> None:
    """Check that the extras exist."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert words[0] in ("install", "uninstall"), words
    for extras in re.findall(r"(?:turnwise|\.)\[([\w,-]+)\]", " ".join(words)):
        assert set(extras.split(",")) <= set(project["optional-dependencies"]), extras


def check_make(words: Sequence[str]) -> None:
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert targets is not None
    assert {word for word in words if "=" not in word} <= set(targets[1].split()), words


def check_pytest(words: Sequence[str]) -> None:
    """Check that the file exists, in the page's folder or in the repository, and parses."""
    file = next(word for word in words if word.endswith(".py"))
    path = Path(file) if Path(file).exists() else ROOT / file
    ast.parse(path.read_text(encoding="utf-8"))


def accept(words: Sequence[str]) -> None:
    """Accept a command that sets up or removes an installation."""


CHECKED: dict[str, Callable[[Sequence[str]], None]] = {
    "pip": check_pip,
    "make": check_make,
    "pytest": check_pytest,
    **dict.fromkeys(("source", "cd", "git", "export", "rm", "python3"), accept),
}


def patch_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let servers end as soon as they have started, open no browser, and leave out what takes seconds."""
    uvicorn = importlib.import_module("uvicorn")
    server = importlib.import_module("turnwise.tools.search.server")
    monkeypatch.setattr(uvicorn.Server, "run", lambda *given, **named: None)
    monkeypatch.setattr(server.SearchServer, "serve_forever", lambda *given: None)
    monkeypatch.setattr("turnwise.run.serving.wait_for_stop", lambda: asyncio.sleep(0))
    monkeypatch.setattr("turnwise.run.tinker_serving.wait_for_stop", lambda: asyncio.sleep(0))
    monkeypatch.setattr("turnwise.service.openenv.serve.wait_for_stop", lambda: asyncio.sleep(0))
    monkeypatch.setattr("webbrowser.open", lambda address: True)
    monkeypatch.setattr("turnwise.run.doctor.sandbox_report", lambda: ["sandbox: not tried"])
    monkeypatch.setattr("turnwise.cluster.plan.SIMULATED", 1)
