import asyncio
import json
import os
import random
import subprocess
import sys
from typing import ClassVar

import pytest

from turnwise.core.errors import UserError
from turnwise.core.messages import assistant
from turnwise.core.random_streams import random_stream
from turnwise.core.task import Task
from turnwise.envs.catalogue import CATALOGUE, EnvEntry, split_target
from turnwise.envs.registry import ENVIRONMENTS, load_spec, spec_of
from turnwise.envs.seeds import seed_for
from turnwise.envs.text_env import TextEnv, goes_on

FILE = '''
"""A user's file."""
from turnwise.envs.text_env import TextEnv, won

class Coin(TextEnv):
    """Say heads.

    More rules."""
    def reset(self, rng):
        return "Heads or tails?"
    def step(self, action):
        return won(action)

class Half(TextEnv):
    def reset(self, rng):
        return ""

NOT_A_CLASS = 3
'''


class Dice(TextEnv):
    """Roll: the start is drawn from the task, the rolls are each member's own."""

    def reset(self, rng):
        self.first = rng.random()
        return str(self.first)

    def step(self, action):
        return goes_on(str(self.rng.random()))


@pytest.fixture
def coin(tmp_path):
    path = tmp_path / "my_env.py"
    path.write_text(FILE)
    return path


def opening(runner):
    return asyncio.run(runner.start()).messages[1].content


BUILT_IN = [name for name in ENVIRONMENTS if not load_spec(name).cls.needs and not load_spec(name).required_params]
"""Environments of other packages are tested separately."""


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_environments_load_and_start(name):
    kind = load_spec(name)
    assert kind.name == kind.id == name
    assert kind.summary and "\n" not in kind.summary
    assert kind.install_command is None
    assert opening(kind.make(Task(env=name, seed=0)))
    assert spec_of(kind.cls) == kind
    assert all(parameter.description for parameter in kind.parameters())


@pytest.mark.parametrize("name", CATALOGUE)
def test_catalogue_agrees_with_the_classes(name):
    cls, target = load_spec(name).cls, CATALOGUE[name].target
    assert CATALOGUE[name] == EnvEntry(
        entry_point=f"{cls.__module__}:{cls.__qualname__}",
        summary=load_spec(name).summary,
        needs=dict(cls.needs),
        target=target,
    )
    assert not target or target in load_spec(name).params_model.model_fields


def test_split_target_reads_the_parameter_after_the_colon() -> None:
    assert split_target("sokoban") == ("sokoban", {})
    assert split_target("gymnasium:Taxi-v4") == ("gymnasium", {"id": "Taxi-v4"})
    assert split_target("gymnasium:my_module:My-v0") == ("gymnasium", {"id": "my_module:My-v0"})
    assert split_target("reasoning_gym:leg_counting") == ("reasoning_gym", {"task": "leg_counting"})
    for other in ("gymnasium:", "sokoban:6", "my_env.py:Env", "sokban", ""):
        assert split_target(other) is None


def test_load_spec_loads_a_file_once(coin):
    kind = load_spec(f"{coin}:Coin")
    assert kind.name == "Coin" and kind.summary == "Say heads."
    assert kind.cls is load_spec(f"{coin}:Coin").cls
    assert opening(kind.make(Task(env="Coin", seed=0))) == "Heads or tails?"


def test_load_spec_finds_modules_beside_the_file(coin, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (coin.parent / "rules_of_coin.py").write_text('SIDES = ("heads", "tails")')
    (coin.parent / "json.py").write_text("1 / 0")  # a name of the standard library stays that
    coin.write_text(f"import json\nfrom rules_of_coin import SIDES\n{FILE}")
    assert load_spec(f"{coin}:Coin").summary == "Say heads."


def test_spec_of_names_the_source_of_a_class(coin):
    cls = load_spec(f"{coin}:Coin").cls
    assert spec_of(cls).id == f"{coin}:Coin"
    assert spec_of(Dice).id == f"{__file__}:Dice"

    class Local(Dice):
        pass

    assert spec_of(Local).id == "python:Local" and load_spec("python:Local").cls is Local


WRONG = """
import turnwise as tw
class Word(tw.TextEnv):
    action_names = ("yes")
    def reset(self, rng): return ""
    def step(self, action): return tw.won()
class NoRng(Word):
    action_names = ("yes",)
    def reset(self): return ""
class NoAction(Word):
    action_names = ("yes",)
    def step(self): return tw.won()
"""


@pytest.mark.parametrize(
    ("env_id", "line"),
    [
        ("frozen_lak", r'did you mean "frozen_lake"\?'),
        ("xyz", "choose one that `turnwise envs` lists"),
        ("FOLDER/no_such.py:Coin", "no_such.py does not exist"),
        ("FOLDER/my_env.py", "my_env.py:Class"),
        ("FOLDER/my_env.py:Coins", r'did you mean "Coin"\?'),
        ("FOLDER/my_env.py:Qq", 'No class "Qq"'),
        ("FOLDER/my_env.py:NOT_A_CLASS", "is not an environment"),
        ("FOLDER/my_env.py:TextEnv", "is not an environment"),
        ("FOLDER/my_env.py:Half", "lacks step"),
        ("FOLDER/wrong.py:Word", r'Word.action_names is a text: write action_names = \("yes",\), with the comma'),
        ("FOLDER/wrong.py:NoRng", r"NoRng.reset has other arguments .*: write def reset\(self, rng\)"),
        ("FOLDER/wrong.py:NoAction", r"NoAction.step has other arguments .*: write def step\(self, action\)"),
        ("FOLDER/broken.py:Coin", "could not be loaded: ZeroDivisionError"),
    ],
)
def test_load_spec_explains_errors_in_one_line(coin, env_id, line):
    (coin.parent / "broken.py").write_text("1 / 0")
    (coin.parent / "wrong.py").write_text(WRONG)
    with pytest.raises(UserError, match=line) as caught:
        load_spec(env_id.replace("FOLDER", str(coin.parent)))
    assert "\n" not in str(caught.value)


def test_check_params_returns_plain_json_with_defaults():
    params = load_spec("frozen_lake").check_params({"slippery": "True"})
    assert params["slippery"] is True and params["size"] == 4 and params["frozen"] == 0.8
    assert json.loads(json.dumps(params)) == params
    assert load_spec("frozen_lake").check_params(params) == params


@pytest.mark.parametrize(
    ("params", "line"),
    [
        ({"siz": 5}, 'did you mean "size"'),
        ({"qqq": 1}, "choose from"),
        ({"size": 9}, "env.params.size = 9: must be less than"),
    ],
)
def test_check_params_explains_errors_in_one_line(params, line):
    with pytest.raises(UserError, match=line) as caught:
        load_spec("frozen_lake").check_params(params)
    assert "\n" not in str(caught.value)


def test_load_spec_reports_missing_dependencies():
    class Needy(Dice):
        needs: ClassVar = {"no_such_module_of_ours": "no-such-package"}

    kind = spec_of(Needy)
    assert kind.install_command == "pip install no-such-package"
    with pytest.raises(UserError, match="pip install no-such-package"):
        kind.make(Task(env="Needy", seed=0))


def test_group_members_share_only_the_start_state(episode):
    task = Task(env="Dice", seed=7)
    runs = {}
    for member, attempt in [(0, 0), (1, 0), (0, 1), (1, 1)]:
        first, results = episode(spec_of(Dice).make(task, member=member, attempt=attempt), ["<answer>x</answer>"] * 3)
        runs[member, attempt] = first.messages[1].content, tuple(r.messages[0].content for r in results)
    assert len({start for start, _ in runs.values()}) == 1
    assert len({luck for _, luck in runs.values()}) == 4


def test_random_streams_follow_the_design():
    kind, params = spec_of(Dice), spec_of(Dice).check_params({})
    task = Task(env="Dice", seed=3, params=params)
    assert opening(kind.make(task)) == str(random_stream("start", *task.parts).random())
    assert kind.make(task, member=2, attempt=1).env.rng.random() == random_stream("luck", *task.parts, 2, 1).random()
    assert opening(kind.make(Task(env="Dice", seed=3))) == opening(kind.make(task)), "defaults need not be spelt out"


def test_make_rejects_seeds_of_other_splits():
    for split, of in [("train", "test"), ("train", "validation"), ("test", "train")]:
        with pytest.raises(UserError, match=f"to the {of} split, not {split}"):
            spec_of(Dice).make(Task(env="Dice", seed=seed_for(of, 0), split=split))


def test_make_rejects_tasks_of_other_environments():
    with pytest.raises(UserError, match="'sokoban'"):
        spec_of(Dice).make(Task(env="sokoban", seed=0))


@pytest.mark.parametrize("name", ["frozen_lake", "sokoban"])
def test_seeds_and_splits_give_different_tasks(name):
    kind = load_spec(name)
    starts = {}
    for split in ("train", "validation", "test"):
        tasks = (Task(env=name, seed=seed_for(split, index), split=split, params={"size": 8}) for index in range(30))
        starts[split] = {opening(kind.make(task)) for task in tasks}
        assert len(starts[split]) == 30
    assert not starts["train"] & starts["test"] and not starts["train"] & starts["validation"]


def play_built_in_environments() -> list[str]:
    """Return what an episode of random play in each environment shows."""
    variants = [("frozen_lake", {"slippery": True}), ("sokoban", {"size": 8, "boxes": 2})]

    async def episode(name, params):
        runner = load_spec(name).make(Task(env=name, seed=5, params=params), member=1)
        shown = [f"{(await runner.start()).messages} {runner.env.solve()}"]
        rng, over = random.Random(0), False
        while not over:
            result = await runner.step(assistant(runner.env.random_answer(rng)))
            shown.append(str(result))
            over = result.over
        await runner.close()
        return "\n".join(shown)

    async def episodes():
        return [await episode(name, params) for name, params in [*((name, {}) for name in BUILT_IN), *variants]]

    return asyncio.run(episodes())


def test_episodes_are_equal_in_every_process(request):
    script = "import json, test_env_registry as test; print(json.dumps(test.play_built_in_environments()))"
    path = os.pathsep.join([str(request.path.parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONHASHSEED": "1", "PYTHONUTF8": "1", "PYTHONPATH": path},
        capture_output=True,
        check=True,
    )
    here = play_built_in_environments()
    assert len(here) == len(BUILT_IN) + 2 and json.loads(done.stdout) == here
