"""Presets are complete, and what a person names is found or the nearest is."""

from pathlib import Path
from typing import Any

import pytest

from turnwise.config.load import build, to_toml
from turnwise.core.errors import UserError
from turnwise.envs.registry import ENVIRONMENTS, load_spec
from turnwise.recipes.presets import find_recipe, list_recipes, recipe_names
from turnwise.run import configure as module
from turnwise.run.configure import configure, load_recipe, load_target
from turnwise.run.evaluation.plan import plan_evaluation
from turnwise.run.validate import check_settings


@pytest.mark.parametrize("name", recipe_names())
def test_preset_is_valid_and_has_a_summary(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")  # of those with a judge
    recipe = find_recipe(name)
    assert recipe.summary.endswith(".")
    assert recipe.environment in ENVIRONMENTS
    config = configure(name)
    check_settings(config)
    assert config.env.kind == recipe.environment
    assert load_spec(config.env.kind).check_params(config.env.params)


def test_presets_are_listed_by_name() -> None:
    assert [recipe.name for recipe in list_recipes()] == recipe_names() == sorted(recipe_names())
    assert {"bandit", "frozen_lake", "sokoban"} <= set(recipe_names())


def test_unknown_preset_suggests_the_closest() -> None:
    for lookup in (find_recipe, load_recipe):
        with pytest.raises(UserError, match=r'Unknown recipe "sokobn": did you mean "sokoban"\? \(`turnwise recipes`'):
            lookup("sokobn")


def test_toml_file_is_a_recipe(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('[env]\nkind = "sokoban"\n[env.params]\nsize = 8\n[train]\nsteps = 7\n')
    config = configure(str(own), overrides=[("train.steps", "9")])
    assert (config.env.kind, config.env.params["size"], config.train.steps) == ("sokoban", 8, 9)
    own.write_text('[env]\nkind = "tools"\ntasks = "rows.jsonl"\ntools = ["own.py:look"]\nreward = "own.py:score"\n')
    (tmp_path / "own.py").write_text(
        'def look(a: str) -> str:\n    """Looks."""\n\n\ndef score(answer, row):\n    return 0\n'
    )
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"question": "{number}?"}}\n' for number in range(30)))
    params = configure(str(own)).env.params
    assert params["tasks"] == str(tmp_path / "rows.jsonl"), "files are looked for beside it"
    assert (params["tools"], params["reward"]) == ([f"{tmp_path}/own.py:look"], f"{tmp_path}/own.py:score")
    with pytest.raises(UserError, match=r"missing\.toml does not exist"):
        configure(str(tmp_path / "missing.toml"))


def test_environment_without_a_preset_uses_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "recipe_names", list)
    model = [("model.name", "someone/7b")]
    assert configure("sokoban", overrides=model) == build({"env": {"kind": "sokoban"}}, model)


def test_class_in_a_file_uses_the_defaults() -> None:
    assert load_target("my_env.py:GuessNumber") == {"env": {"kind": "my_env.py:GuessNumber"}}


def test_environment_with_images_gets_tiny_vlm_unless_a_model_is_named() -> None:
    images, maze = ("env.params.observation", "image"), "gymnasium:MiniGrid-Empty-5x5-v0"
    chosen, text = configure(maze, overrides=[images]), configure(maze)
    assert (chosen.model.name, chosen.model.train_vision, text.model.name) == ("tiny_vlm", True, "tiny")
    assert (chosen.algo, chosen.critic, chosen.train) == (text.algo, text.critic, text.train)
    assert configure(maze, overrides=[images, ("model.train_vision", "false")]).model.train_vision is False
    for name in ("tiny", "smollm2-135m-vision"):
        named = configure(maze, overrides=[images, ("model.name", name)]).model
        assert (named.name, named.train_vision) == (name, None)
    assert configure("frozen_lake", overrides=[images]).model.name == "tiny"  # a recipe, which is tuned for its model


def test_images_without_a_recipe_have_the_size_of_the_models_tokens(tmp_path: Path) -> None:
    images, maze = ("env.params.observation", "image"), "gymnasium:MiniGrid-Empty-5x5-v0"

    def sizes(target: str, *overrides: tuple[str, str]) -> tuple[Any, ...]:
        params = configure(target, overrides=[images, *overrides]).env.params
        return params.get("cell_pixels"), params.get("image_side")

    assert sizes(maze) == (8, 64)
    assert sizes(maze, ("model.name", "smollm2-135m-vision")) == (28, 224)
    assert sizes(maze, ("model.name", "Qwen/Qwen2-VL-2B-Instruct")) == (None, None)
    assert sizes(maze, ("env.params.image_side", "40")) == (None, 40)
    assert sizes("sudoku") == (8, None) and sizes("sudoku", ("env.params.cell_pixels", "16")) == (16, None)
    assert sizes("frozen_lake", ("model.name", "tiny_vlm")) == (None, None)  # a recipe
    assert configure(maze).env.params == {"id": "MiniGrid-Empty-5x5-v0"}
    (tmp_path / "config.toml").write_text(to_toml(build({"model": {"name": "tiny_vlm"}})), encoding="utf-8")
    assert sizes(maze, ("model.name", str(tmp_path))) == (8, 64), "a run counts as the model that it started from"


def test_tiny_models_see_the_current_turn_of_gymnasium_by_default(tmp_path: Path) -> None:
    maze, full = "gymnasium:MiniGrid-Empty-5x5-v0", ("full", None)

    def context(target: str, *overrides: tuple[str, str], **settings: Any) -> tuple[str, int | None]:
        found = configure(target, overrides=overrides, **settings).context
        return found.kind, getattr(found, "turns", None)

    assert context(maze) == ("turn", 0)
    assert context(maze, ("env.params.observation", "image")) == ("turn", 0)
    assert context(maze, ("context.turns", "2")) == ("turn", 2)
    assert context(maze, ("context", "full")) == full
    assert context(maze, full_context=True) == full
    assert context(maze, ("env.mix.sokoban", "1")) == full
    assert context(maze, like="frozen_lake") == full
    assert context("sudoku") == context("taxi") == full
    assert context(maze, ("model.name", "Qwen/Qwen3-0.6B")) == full
    for saved in (full, ("turn", 1)):  # such as SFT, which shows whole episodes
        kept = {name: value for name, value in zip(("kind", "turns"), saved, strict=True) if value is not None}
        run = build({"model": {"name": "tiny"}, "context": kept})
        (tmp_path / "config.toml").write_text(to_toml(run), encoding="utf-8")
        assert context(maze, ("model.name", str(tmp_path))) == saved, "a run's model sees what it saw there"


def test_tiny_model_gets_smaller_batches_where_it_sees_one_turn_at_a_time() -> None:
    def batch(*overrides: tuple[str, str]) -> tuple[int, int, int]:
        config = configure("gymnasium:Taxi-v4", overrides=overrides)
        return config.rollout.groups, config.rollout.group_size, config.train.mini_batch

    assert batch() == batch(("env.params.observation", "image")) == (8, 8, 16)
    assert batch(("context", "full")) == (32, 8, 64)
    assert batch(("rollout.groups", "4")) == (4, 8, 16)
    assert batch(("model.name", "someone/7b")) == (8, 16, 32)


def test_overrides_replace_settings_of_the_preset() -> None:
    plain = configure("bandit")
    changed = configure("bandit", overrides=[("train.steps", "3")])
    assert changed.train.steps == 3
    assert changed.model_copy(update={"train": plain.train}) == plain


def test_resumed_run_keeps_its_folder_and_settings(tmp_path: Path) -> None:
    run = tmp_path / "elsewhere" / "renamed"
    run.mkdir(parents=True)
    (run / "config.toml").write_text(
        to_toml(build({"record": {"name": "first"}, "train": {"steps": 9}})), encoding="utf-8"
    )
    config = configure(resume=str(run))
    assert (config.record.folder, config.record.name) == (str(run.parent), "renamed")
    assert config.train.steps == 9


def test_run_started_from_another_gets_a_new_name(tmp_path: Path) -> None:
    run = tmp_path / "first"
    run.mkdir()
    (run / "config.toml").write_text(
        to_toml(build({"record": {"name": "first"}, "train": {"steps": 9}})), encoding="utf-8"
    )
    config = configure(start_from=str(run))
    assert (config.record.folder, config.record.name, config.train.steps) == ("runs", None, 9)


def test_configure_needs_exactly_one_source() -> None:
    for given in ({}, {"target": "bandit", "start_from": "x"}, {"start_from": "x", "resume": "x"}):
        with pytest.raises(UserError, match="Give one of: a recipe"):
            configure(**given)


def test_reward_and_judge_files_are_relative_to_the_toml_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, elsewhere = tmp_path / "own/own.toml", tmp_path / "elsewhere"
    own.parent.mkdir()
    elsewhere.mkdir()
    own.write_text(
        '[env]\nkind = "bandit"\n[reward]\nfunctions = ["mine.py:kind"]\n[[reward.judges]]\nmodel = "m"\n'
        'rubric = "writes notes.jsonl"\nkey_file = "key"\ncache = "kept"\n[[reward.judges]]\nmodel = "m"\n'
        'rubric = "r"\nname = "two"\ncache = ""\n'
    )
    monkeypatch.chdir(elsewhere)
    for folder in (own.parent, elsewhere):
        (folder / "mine.py").write_text("def kind(trajectory):\n    return 0.0\n")
    reward = configure(str(own)).reward
    assert [function.kind for function in reward.functions] == [f"{tmp_path}/own/mine.py:kind"]
    first, second = reward.judges
    assert (first["key_file"], first["cache"]) == (f"{tmp_path}/own/key", f"{tmp_path}/own/kept")
    assert first["rubric"] == "writes notes.jsonl" and second["cache"] == "", "the rest is words"
    typed = configure("bandit", overrides=[("reward.functions", '["mine.py:kind"]')]).reward
    assert [function.kind for function in typed.functions] == [f"{elsewhere}/mine.py:kind"]


def test_settings_file_with_another_suffix_is_reported(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("env: bandit")
    for name in ("own.tml", str(tmp_path / "own.yaml")):
        with pytest.raises(UserError, match=rf"^{name}: settings are read from FILE.toml .* Rename it\.$"):
            configure(name)
    with pytest.raises(UserError, match=r'Unknown recipe or environment "Qwen2\.5-0\.5B"'):
        configure("Qwen2.5-0.5B")


@pytest.mark.parametrize("text", ["", "# settings\n", "[train]\n", "[env]\n"])
def test_toml_file_without_settings_is_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / "own.toml").write_text(text)
    with pytest.raises(UserError, match=r"own\.toml has no settings\. Start it with the environment: \[env\]"):
        configure(str(tmp_path / "own.toml"))


@pytest.mark.parametrize("text", ["train.steps = 3\n", "[env]\nsize = 3\n", "[agent]\ntimeout_s = 9.0\n"])
def test_toml_file_without_environment_is_rejected(tmp_path: Path, text: str) -> None:
    file = tmp_path / "own.toml"
    file.write_text(text)
    with pytest.raises(UserError, match=r"own\.toml does not name an environment\. Add \[env\] .* --env\.kind NAME"):
        configure(str(file))
    with pytest.raises(UserError, match=r"own\.toml does not name an environment"):
        plan_evaluation(["tiny", str(file)])


def test_toml_file_without_environment_takes_it_from_an_override(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text("train.steps = 3\n")
    config = configure(str(tmp_path / "own.toml"), overrides=[("env.kind", "bandit")])
    assert (config.env.kind, config.train.steps) == ("bandit", 3)


def test_toml_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('[env]\nkind = "bandit"\n', encoding="utf-8-sig")
    assert configure(str(tmp_path / "own.toml")).env.kind == "bandit"


def test_mini_batch_of_a_recipe_follows_a_smaller_batch() -> None:
    small = configure("frozen_lake", overrides=[("rollout.groups", "4"), ("rollout.group_size", "2")])
    assert small.train.mini_batch == 8
    check_settings(small)
    assert configure("frozen_lake", overrides=[("rollout.groups", "100")]).train.mini_batch == 64
    chosen = configure("frozen_lake", overrides=[("rollout.groups", "4"), ("train.mini_batch", "64")])
    with pytest.raises(UserError, match=r"train\.mini_batch 64 is more than the trajectories"):
        check_settings(chosen)


def test_environment_file_without_its_suffix_is_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "coffee.py").touch()
    with pytest.raises(UserError, match=r"did you mean coffee\.py:Bar\?"):
        load_target("coffee:Bar")
