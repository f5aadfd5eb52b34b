"""Packages that `turnwise envs export` writes. Those for OpenEnv and verifiers are run beside the real libraries."""

import tomllib
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from turnwise.core.errors import UserError
from turnwise.envs.registry import load_spec, spec_of
from turnwise.envs.text_env import TextEnv, won
from turnwise.run.env_export import TARGETS, export_environment

GUESS = '''import turnwise as tw

class GuessNumber(tw.TextEnv):
    """I think of a number between 1 and 8."""
    def reset(self, rng): self.secret = rng.randint(1, 8); return "Guess."
    def step(self, action): return tw.won("Correct!") if int(action) == self.secret else tw.goes_on("No.")
'''


@pytest.fixture
def guess_id(tmp_path: Path) -> str:
    file = tmp_path / "guess.py"
    file.write_text(GUESS)
    return f"{file}:GuessNumber"


@pytest.mark.parametrize("target", TARGETS)
def test_package_is_complete_and_independent_of_the_file(target: Any, guess_id: str, tmp_path: Path) -> None:
    folder = export_environment(load_spec(guess_id), {"max_turns": 3}, target, tmp_path / "out")
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == "turnwise-guess-number" and project["description"].startswith("I think of")
    assert str(tmp_path) not in "".join(path.read_text() for path in folder.rglob("*") if path.is_file())
    readme = (folder / "README.md").read_text()
    assert readme.index("in a clone of its repository") < readme.index("pip install -e .")
    for path in folder.rglob("*.py"):
        compile(path.read_text(), path, "exec")
    assert [path.read_text() for path in folder.rglob("environment.py")] == [GUESS]


def test_gymnasium_makes_the_exported_environment(
    guess_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(
        export_environment(load_spec(guess_id), {"max_turns": 3}, "gymnasium", tmp_path / "out")
    )
    Path(guess_id.rpartition(":")[0]).unlink()
    env = gymnasium.make("turnwise_guess_number:turnwise/GuessNumber-v0", disable_env_checker=True)
    observation, _ = env.reset(seed=1)
    assert observation == "Guess." and env.reset(seed=1)[0] == observation
    endings = [env.step("no number")[3] for _ in range(3)]
    assert endings == [False, False, True], "the parameters are the exported ones"
    check_env(env.unwrapped, skip_render_check=True)


CHECKED = {
    "frozen_lake": "FrozenLake",
    "sokoban": "Sokoban",
    "game_2048": "Game2048",
    "sudoku": "Sudoku",
    "lookup": "Lookup",
}


@pytest.mark.parametrize("name", CHECKED)
def test_exported_environment_passes_gymnasiums_checker(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the package's id, alone and as vector environments in this process and in others."""
    monkeypatch.syspath_prepend(export_environment(load_spec(name), {}, "gymnasium", tmp_path / "out"))
    id = f"turnwise_{name}:turnwise/{CHECKED[name]}-v0"
    env = gymnasium.make(id, disable_env_checker=True)
    starts = tuple(env.reset(seed=seed)[0] for seed in (1, 2, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error", category=DeprecationWarning)
        check_env(env.unwrapped, skip_render_check=True)
    for mode, options in (("sync", {}), ("async", {"shared_memory": False})):
        envs = gymnasium.make_vec(id, num_envs=3, vectorization_mode=mode, vector_kwargs=options)
        assert envs.reset(seed=1)[0] == starts
        _, rewards, terminated, truncated, _ = envs.step(envs.action_space.sample())
        assert rewards.shape == terminated.shape == truncated.shape == (3,)
        envs.close()


def test_export_of_a_built_in_environment_names_it(tmp_path: Path) -> None:
    folder = export_environment(load_spec("frozen_lake"), {"size": 5}, "gymnasium", tmp_path / "out")
    code = (folder / "turnwise_frozen_lake" / "__init__.py").read_text()
    assert "ENVIRONMENT = 'frozen_lake'" in code and '{"size": 5}' in code


def test_export_refuses_full_folders_and_classes_without_a_file(guess_id: str, tmp_path: Path) -> None:
    class Homeless(TextEnv):
        """A class of a program."""

        def reset(self, rng: Any) -> str:
            return "Hello."

        def step(self, action: str) -> Any:
            return won()

    with pytest.raises(UserError, match="is not empty: choose another folder with --out"):
        export_environment(load_spec(guess_id), {}, "gymnasium", tmp_path)
    with pytest.raises(UserError, match="Homeless is in no file"):
        export_environment(spec_of(Homeless), {}, "gymnasium", tmp_path / "other")
