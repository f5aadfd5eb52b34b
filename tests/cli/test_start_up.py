"""Help, lists and errors import neither torch nor transformers. benchmarks/start_up.py measures their time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "transformers", "tokenizers", "numpy")
QUICK = (
    "--help",
    "envs",
    "recipes",
    "trian",
    "train frozn_lake",
    "train frozen_lake --stpes 3",
    "train frozen_lake --algo.clip_hi 3",
    "train frozen_lake --algo.advantage groo",
    "train frozen_lake --algo.loss groo",
    "train frozen_lake --algo.filter groo",
    "train frozen_lake --algo.preset groo",
    "train frozen_lake --engine groo",
    "train frozen_lake --model.name groo",
    "train frozen_lake --model.device groo",
    "train frozen_lake --record.trackers groo",
    "train frozen_lake --env.params.groo 3",
    "train frozen_lake --env.kind groo",
)
NO_SETTINGS = ("--help", "recipes", "recipes bandit", "recipes --algos", "train --help", "sft --help")
"""Commands that need neither settings nor environments; with both they would take three times as long."""
LIGHT = (
    "models",
    "eval --help",
    "export --help",
    "play --help",
    "eval",
    "eval nowhere",
    "eval tiny frozenlake",
    "eval tny frozen_lake",
    "eval tiny frozen_lake --episodes 0",
    "serve --port 99999",
    "export nowhere --to x",
    "merge nowhere --into x",
    "watch nowhere",
    "data inspect nowhere",
    "data export nowhere",
    "data export nowhere --to x",
    "data evaluate nowhere --on x",
    "doctor --agent missing.toml",
    "sft frozenlake",
    "sft bandit --model.name tny",
    "serve --model.name tny",
    "train frozen_lake --model.name ./nowhere",
    "train frozen_lake --data nowhere",
    "train frozen_lake --env.params.size big",
    "report nowhere",
)
"""Commands and mistakes that need no model."""

COMMAND = """
from turnwise.cli.main import main
main(sys.argv[2:])
"""
LIBRARIES = """
attr attrs cyclopts docstring_parser rich markdown_it mdurl pygments annotated_types pydantic pydantic_core tomli_w
typing_extensions typing_inspection
"""
"""Third-party packages of the command line and the configuration; importing them takes a tenth of a second."""
REPORT = """
with open(sys.argv[1], "w") as file:
    json.dump(list(sys.modules), file)
"""
MAX_OWN_MODULES = 180
"""Modules of turnwise that a quick command may import."""


def imported_modules(code: str, typed: str, folder: Path) -> list[str]:
    """Return the modules that the code imports in a new process."""
    report = folder / "report.json"
    program = f"import json, sys\n{code}\n{REPORT}"
    subprocess.run([sys.executable, "-c", program, str(report), *typed.split()], capture_output=True, check=True)
    modules: list[str] = json.loads(report.read_text())
    return modules


def other_packages(modules: list[str]) -> set[str]:
    """Return packages beyond Python, turnwise and LIBRARIES; names with an underscore are hooks of the installation."""
    found = {name.partition(".")[0] for name in modules if not name.startswith("_")}
    return found - sys.stdlib_module_names - {"turnwise", *LIBRARIES.split()}


@pytest.mark.parametrize("typed", QUICK)
def test_quick_commands_import_few_modules(typed: str, tmp_path: Path) -> None:
    modules = imported_modules(COMMAND, typed, tmp_path)
    assert "turnwise.cli.main" in modules
    assert other_packages(modules) == set()
    assert len([name for name in modules if name.startswith("turnwise")]) < MAX_OWN_MODULES


@pytest.mark.parametrize("typed", LIGHT)
def test_light_commands_import_no_heavy_package(typed: str, tmp_path: Path) -> None:
    modules = imported_modules(COMMAND, typed, tmp_path)
    assert "turnwise.cli.main" in modules
    assert [name for name in HEAVY if name in modules] == []


@pytest.mark.parametrize("typed", NO_SETTINGS)
def test_help_and_recipes_import_no_settings_and_no_environments(typed: str, tmp_path: Path) -> None:
    modules = imported_modules(COMMAND, typed, tmp_path)
    assert "turnwise.cli.main" in modules
    assert "pydantic" not in modules
    needless = (
        "turnwise.config",
        "turnwise.envs.registry",
        "turnwise.envs.spec",
        "turnwise.rewards",
        "turnwise.rollout",
    )
    assert [name for name in modules if name.startswith(needless)] == []


def test_envs_imports_no_environment(tmp_path: Path) -> None:
    modules = imported_modules(COMMAND, "envs", tmp_path)
    assert [name for name in modules if name.startswith("turnwise.envs.")] == [
        "turnwise.envs.catalogue",
        "turnwise.envs.starter",
        "turnwise.envs.starter.write",
    ]


def test_imported_modules_lists_a_heavy_package(tmp_path: Path) -> None:
    assert "numpy" in other_packages(imported_modules(f"{COMMAND}import numpy", "recipes", tmp_path))


def test_installed_script_and_module_print_the_same() -> None:
    script = Path(sys.executable).parent / "turnwise"
    answers = [
        subprocess.run([*command, "recipes"], capture_output=True, text=True)
        for command in ([str(script)], [sys.executable, "-m", "turnwise"])
    ]
    assert answers[0].returncode == answers[1].returncode == 0
    assert answers[0].stdout == answers[1].stdout


def test_unexpected_error_prints_a_traceback_and_exits_with_1() -> None:
    code = "import turnwise.cli.main as m, sys\ndef run(tokens): 1 / 0\nm.run = run\nsys.exit(m.main(['envs']))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.returncode == 1
    assert "Traceback" in answer.stderr
    assert "ZeroDivisionError" in answer.stderr


@pytest.mark.parametrize("typed", ["train --help-all", "recipes"])
def test_closed_output_pipe_exits_quietly(typed: str) -> None:
    """Long output fails while it is written, short output at the last flush."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "turnwise", *typed.split()]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    answer = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, env=buffered)
    os.close(write)
    assert (answer.returncode, answer.stderr) == (141, "")


def test_missing_permission_is_one_line_that_names_the_path() -> None:
    code = (
        "import turnwise.cli.main as m, sys\ndef run(tokens): raise PermissionError(13, 'denied', '/x')\nm.run = run\n"
    )
    answer = subprocess.run([sys.executable, "-c", f"{code}sys.exit(m.main(['envs']))"], capture_output=True, text=True)
    assert answer.returncode == 2
    assert answer.stderr == "turnwise: /x: permission denied. Change its permissions, or give another path.\n"
