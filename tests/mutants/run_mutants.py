"""Run the mutants: every mutation of the list must make one of the tests that it names fail.

    python tests/mutants/run_mutants.py [--jobs N] [--only TEXT]

The tests are run once as they are. Libraries that they imported are then imported here, once for all. Each mutant is a
forked process that runs pytest on the tests of its entry, with a source tree of its own: links to the working tree, and
the one mutated file. The working tree is never written to.

    killed     a test failed, in its body or in a fixture
    survived   all tests passed: the suite lets this bug through
    error      the tests could not be collected, the process died, or it took longer than HANG_S: none of these counts
"""

import argparse
import gc
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutant_for_tests import SOURCE, TESTS, DoesNotApplyError, Mutant

UNUSED_PLUGINS = ("cacheprovider", "xdist", "langsmith_plugin")
PRELOADED = ("torch", "transformers", "pytest", "hypothesis")
"""Imported before anything else. Nothing of turnwise: each child imports its own."""
HANG_S = 600.0
HOW_TO_FIX = "write the entry for the source as it is now, or remove it with the code that it was about"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    kind: str
    """"killed", "survived" or "error"."""
    by: str
    """The test that failed, or what happened instead."""
    seconds: float
    output: str = ""
    """Output of pytest."""
    libraries: tuple[str, ...] = ()
    """Modules that unmutated tests imported from elsewhere."""


class Witness:
    """A pytest plugin that records the first failure."""

    def __init__(self) -> None:
        self.failed = self.not_collected = ""
        self.passed = 0

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.passed += report.when == "call" and report.passed
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.not_collected:
            self.not_collected = report.nodeid

    def verdict(self, status: int) -> tuple[str, str]:
        if self.not_collected:
            return "error", f"{self.not_collected} cannot be collected"
        if self.failed:
            return "killed", self.failed
        if status == 0 and self.passed:
            return "survived", f"{self.passed} tests passed"
        return "error", f"pytest ended with status {status} after {self.passed} tests"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    tests: tuple[str, ...]
    mutant: Mutant | None = None
    """None: the tests run without a mutation and must pass."""


class Runner:
    """Forks a process for each job, at most `jobs` at a time."""

    def __init__(self, source: Path, tests: Path, *, jobs: int) -> None:
        self.source, self.tests, self.jobs = source, tests, jobs

    def run(self, queue: Sequence[Job], done: Callable[[Job, Outcome], None]) -> None:
        waiting, running = list(queue), dict[int, tuple[Job, Path, float]]()
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            try:
                while waiting or running:
                    while waiting and len(running) < self.jobs:
                        job, own = waiting.pop(0), Path(folder, str(len(waiting)))
                        own.mkdir()
                        running[self._fork(job, own)] = (job, own, time.perf_counter())
                    pid, status = self._wait(running)
                    job, own, began = running.pop(pid)
                    done(job, _outcome(own, status, time.perf_counter() - began))
                    shutil.rmtree(own, ignore_errors=True)
            finally:
                for pid in running:
                    _kill(pid)
                    os.waitpid(pid, 0)

    def _wait(self, running: dict[int, tuple[Job, Path, float]]) -> tuple[int, int]:
        """Wait until a child has ended; kill those that take too long."""
        while True:
            for pid, (_, _, began) in running.items():
                if time.perf_counter() - began > HANG_S:
                    _kill(pid)
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    return pid, status
            time.sleep(0.02)

    def _fork(self, job: Job, own: Path) -> int:
        pid = os.fork()
        if pid:
            return pid
        status = 70
        try:
            os.setsid()  # so that it can be killed with all processes that its tests start
            status = self._child(job, own)
        finally:
            os._exit(status)

    def _child(self, job: Job, own: Path) -> int:
        import pytest

        output = os.open(own / "output", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
        overlay = make_overlay(self.source, job.mutant, own / "source")
        sys.path.insert(0, str(overlay))
        os.environ["PYTHONPATH"] = str(overlay)  # for the processes that tests start
        options = ["-x", "-q", "-m", "", *("-pno:" + each for each in UNUSED_PLUGINS)]
        options += [f"--basetemp={own / 'temporary'}", f"--hypothesis-profile={_register_profile()}"]
        files = [str(self.tests / each) for each in job.tests]
        witness = Witness()
        status = int(pytest.main([*options, *files], plugins=[witness]))
        kind, by = witness.verdict(status)
        (own / "verdict").write_text(json.dumps([kind, by, self._libraries() if job.mutant is None else []]))
        sys.stdout.flush()
        sys.stderr.flush()
        return 0

    def _libraries(self) -> list[str]:
        """Return the modules that are neither the source's nor the tests', in the order in which they were imported."""
        origins = {name: getattr(getattr(each, "__spec__", None), "origin", None) for name, each in sys.modules.items()}
        inside = (str(self.tests), str(self.source))
        return [
            name
            for name, origin in origins.items()
            if origin and name.partition(".")[0] != self.source.name and not os.path.realpath(origin).startswith(inside)
        ]


def make_overlay(source: Path, mutant: Mutant | None, folder: Path) -> Path:
    """Make a source tree of links to `source`, with a file of its own for what is mutated. Return the folder to import
    from.
    """
    package = folder / source.name
    package.mkdir(parents=True)
    if mutant is None:
        _link_all(source, package, set())
        return folder
    path = Path(mutant.file)
    here, there = source, package
    for part in (*path.parts[:-1], None):
        own = path.name if part is None else part
        _link_all(here, there, {own})
        _link_bytecode(here, there, Path(own).stem)
        if part is not None:
            here, there = here / part, there / part
            there.mkdir()
    (there / path.name).write_text(mutant.apply((source / path).read_text()))
    return folder


def _link_all(source: Path, target: Path, but: set[str]) -> None:
    for each in source.iterdir():
        if each.name not in {*but, "__pycache__"}:
            (target / each.name).symlink_to(each)


def _link_bytecode(source: Path, target: Path, but: str) -> None:
    """Link existing bytecode except that of the mutated module. It is valid, as links have their files' times."""
    (target / "__pycache__").mkdir()
    for each in source.glob("__pycache__/*.pyc"):
        if each.name.partition(".")[0] != but:
            (target / "__pycache__" / each.name).symlink_to(each)


def _kill(pid: int) -> None:
    """Kill a child and all that it started."""
    with suppress(ProcessLookupError):  # it has not made its own group yet, or it has ended
        os.killpg(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _outcome(own: Path, status: int, seconds: float) -> Outcome:
    output, libraries = (own / "output").read_text(errors="replace") if (own / "output").exists() else "", []
    if (own / "verdict").exists():
        kind, by, libraries = json.loads((own / "verdict").read_text())
    elif seconds > HANG_S:
        kind, by = "error", f"took longer than {HANG_S:g} s"
    else:
        kind, by = "error", f"the process ended with status {os.waitstatus_to_exitcode(status)}"
    return Outcome(kind=kind, by=by, seconds=seconds, output=output, libraries=tuple(libraries))


def preload(modules: Sequence[str]) -> None:
    """Import what every child needs. conftest.py sets these variables before it imports anything; so does this."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in modules:
        importlib.import_module(name)
    if "torch" in modules and not importlib.import_module("torch").cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"


def _register_profile() -> str:
    """Register how hypothesis runs here: always the same examples, and no search for a smaller one."""
    from hypothesis import Phase, settings

    phases = (Phase.explicit, Phase.generate)
    settings.register_profile("mutants", deadline=None, database=None, derandomize=True, phases=phases)
    return "mutants"


def check(mutants: Sequence[Mutant], source: Path = SOURCE, tests: Path = TESTS) -> list[str]:
    """Return the problems of the list: entries that do not apply, and missing test files."""
    problems = []
    for mutant in mutants:
        try:
            mutant.apply((source / mutant.file).read_text())
        except (DoesNotApplyError, FileNotFoundError) as error:
            problems.append(f"{mutant.name}: {error}")
        problems += [f"{mutant.name}: no file tests/{each}" for each in mutant.tests if not (tests / each).is_file()]
    return problems


def run_all(mutants: Sequence[Mutant], runner: Runner, write: Callable[[str], None]) -> bool:
    """Run the tests without a mutation, then every mutant. Return whether all are killed."""
    began, files = time.perf_counter(), sorted({each for mutant in mutants for each in mutant.tests})
    failed, libraries = list[str](), dict[str, None]()
    write(f"{len(files)} test files as they are, {runner.jobs} at a time")

    def unmutated(job: Job, outcome: Outcome) -> None:
        libraries.update(dict.fromkeys(outcome.libraries))
        if outcome.kind != "survived":
            failed.append(job.tests[0])
            write(f"FAILS without a mutation: {outcome.by}\n{outcome.output}")

    runner.run([Job(tests=(each,)) for each in files], unmutated)
    if failed:
        write("the tests must pass before mutants can be run")
        return False
    for name in libraries:
        with suppress(Exception):  # some modules can only be imported by a test
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # keeps shared pages of the children unchanged
    write(f"{len(mutants)} mutants")
    outcomes: dict[str, list[str]] = {"killed": [], "survived": [], "error": []}

    def mutated(job: Job, outcome: Outcome) -> None:
        assert job.mutant is not None
        line = f"{outcome.kind:8}  {outcome.seconds:5.1f} s  {job.mutant.name}\n{'':20}{outcome.by}"
        outcomes[outcome.kind].append(line)
        write(line)
        if outcome.kind == "error":
            write(outcome.output[-4000:])

    runner.run([Job(tests=mutant.tests, mutant=mutant) for mutant in mutants], mutated)
    counts = ", ".join(f"{len(lines)} {kind}" for kind, lines in outcomes.items())
    write(f"\n{len(mutants)} mutants in {time.perf_counter() - began:.0f} s: {counts}")
    for line in (*outcomes["survived"], *outcomes["error"]):
        write(line)
    return len(outcomes["killed"]) == len(mutants)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="Processes at a time.")
    parser.add_argument("--only", default="", help="Run mutants whose file or description contains this text.")
    args = parser.parse_args()
    from mutant_list import MUTANTS

    chosen = [mutant for mutant in MUTANTS if args.only in mutant.name]
    if problems := check(chosen):
        sys.stderr.write("\n".join([*problems, HOW_TO_FIX, ""]))
        return 1
    preload(PRELOADED)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the children, too

    def write(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    return 0 if run_all(chosen, Runner(SOURCE, TESTS, jobs=args.jobs), write) else 1


if __name__ == "__main__":
    sys.exit(main())
