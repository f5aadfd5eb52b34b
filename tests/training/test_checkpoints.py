import errno
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from learners_for_tests import learn, make_learner, random_groups, settings_of, weights
from turnwise.core.errors import DivergedError, UserError
from turnwise.files import disk
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.loading.load import LoadedModel, load_model
from turnwise.models.loading.tiny import tiny_tokenizer
from turnwise.run.find_model import find_checkpoint, resolve_model_name
from turnwise.training import checkpoints as checkpoints_module
from turnwise.training import learner as learner_module
from turnwise.training import learner_state as learner_state_module
from turnwise.training.checkpoints import (
    Checkpoints,
    State,
    find_folder,
    last_checkpoint,
    read_state,
    restore,
    step_folders,
    step_of,
)
from turnwise.training.learner import LocalLearner

CONFIG = settings_of("trunk")


def load(name: str) -> LoadedModel:
    return load_model(name, attn_implementation=ATTENTION)


def checkpoints_in(folder: Path, keep_last: int = 2) -> Checkpoints:
    return Checkpoints(folder / "checkpoints", keep_last=keep_last, tokenizer=tiny_tokenizer())


def state(step: int, skipped_steps: int = 0) -> State:
    return State(step=step, skipped_steps=skipped_steps, parts={"validation": {"best_success": 0.25}})


def trained(steps: int) -> LocalLearner:
    learner = make_learner(CONFIG)
    for step in range(steps):
        learn(learner, random_groups(step), CONFIG, step=step)
    return learner


def everything(learner: LocalLearner) -> dict[str, torch.Tensor]:
    return {**weights(learner.model), **{name: t.clone() for name, t in learner.state_dict()["tensors"].items()}}


def assert_same(ours: LocalLearner, theirs: LocalLearner) -> None:
    mine, other = everything(ours), everything(theirs)
    assert mine.keys() == other.keys()
    assert all(torch.equal(mine[name], other[name]) for name in mine)
    assert ours.skipped_steps == theirs.skipped_steps


def test_restored_learner_continues_with_equal_bits(tmp_path: Path) -> None:
    learner, store = trained(2), checkpoints_in(tmp_path)
    learner.load_state_dict({**learner.state_dict(), "skipped_steps": 3})
    assert store.newest() is None
    path = store.save(learner, state(2, skipped_steps=3))
    other = make_learner(CONFIG)
    places = [parameter.data_ptr() for parameter in other.model.parameters()]
    found = store.newest()
    assert found == (path, state(2, skipped_steps=3))
    restore(*found[:1], other, found[1], load)
    assert [parameter.data_ptr() for parameter in other.model.parameters()] == places
    assert_same(other, learner)
    for each in (learner, other):
        learn(each, random_groups(7), CONFIG, step=2)
    assert_same(other, learner)


def test_checkpoint_is_a_hugging_face_model_folder(tmp_path: Path) -> None:
    learner = trained(1)
    path = checkpoints_in(tmp_path).save(learner, state(1))
    loaded = dict(load(str(path)).model.named_parameters())
    assert all(torch.equal(loaded[name], weight) for name, weight in weights(learner.model).items())


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of steps 1 and 2, the best, and what a kill in the middle of writing leaves behind."""
    folder = tmp_path_factory.mktemp("saved")
    learner, store = trained(1), checkpoints_in(folder)
    store.save(learner, state(1), best=True)
    store.save(learner, state(1))
    learn(learner, random_groups(8), CONFIG, step=1)
    store.save(learner, state(2))
    shutil.copytree(folder / "checkpoints/step_000002", folder / "checkpoints/.writing-step_000003")
    return folder


def copy_of(saved: Path, folder: Path) -> Path:
    shutil.copytree(saved / "checkpoints", folder / "checkpoints")
    return folder / "checkpoints"


def test_newest_ignores_leftovers_and_the_best(saved: Path) -> None:
    assert last_checkpoint(saved / "checkpoints") == saved / "checkpoints/step_000002"


def test_save_keeps_the_last_checkpoints_and_the_best(tmp_path: Path, saved: Path) -> None:
    folder, learner = copy_of(saved, tmp_path), make_learner(CONFIG)
    for step in (3, 4):
        checkpoints_in(tmp_path, keep_last=2).save(learner, state(step))
    assert sorted(path.name for path in folder.iterdir()) == ["best", "step_000003", "step_000004"]
    checkpoints_in(tmp_path, keep_last=1).save(learner, state(5))
    assert sorted(path.name for path in folder.iterdir()) == ["best", "step_000005"]


def test_checkpoint_at_a_stop_is_not_regular(tmp_path: Path) -> None:
    learner = make_learner(CONFIG)
    store = Checkpoints(tmp_path / "checkpoints", keep_last=2, tokenizer=tiny_tokenizer(), every=2)

    def kept_after(step: int) -> list[int]:
        store.save(learner, state(step))
        return [int(path.name.removeprefix("step_")) for path in store.steps()]

    assert [kept_after(step) for step in (0, 2, 4, 5, 6)] == [[0], [2], [2, 4], [2, 4, 5], [4, 6]]
    assert kept_after(7) == [4, 6, 7] and [path.name for path in store.regular()] == ["step_000004", "step_000006"]
    store.drop_after(store.regular()[0])
    assert [path.name for path in store.steps()] == ["step_000004"]


def test_drop_before_keeps_last_regular_checkpoints_and_later_ones(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep_last=2, tokenizer=None, every=2)
    for step in (2, 4, 5, 6, 7, 8):
        (tmp_path / f"step_{step:06d}").mkdir()
    store.drop_before(tmp_path / "step_000007")
    assert [step_of(path) for path in store.steps()] == [4, 6, 7, 8]


def test_new_best_replaces_the_old_one(tmp_path: Path, saved: Path) -> None:
    folder, learner = copy_of(saved, tmp_path), make_learner(CONFIG)
    better = State(step=2, skipped_steps=0, parts={"validation": {"best_success": 0.5}})
    checkpoints_in(tmp_path).save(learner, better, best=True)
    assert read_state(folder / "best") == better
    assert not list(folder.glob(".*best*"))


def test_kill_between_the_renames_leaves_no_leftovers_after_a_save(tmp_path: Path, saved: Path) -> None:
    folder, learner = copy_of(saved, tmp_path), make_learner(CONFIG)
    (folder / "best").rename(folder / ".old-best")
    checkpoints_in(tmp_path).save(learner, state(2), best=True)
    assert read_state(folder / "best") == state(2)
    assert not list(folder.glob(".*best*"))


def test_find_folder_returns_the_old_checkpoint_after_a_kill(
    tmp_path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, learner, renames = copy_of(saved, tmp_path), make_learner(CONFIG), []
    before, rename = read_state(folder / "best"), Path.rename

    def die_before_the_second(path: Path, target: Path) -> Path:
        if renames:
            raise Kill
        renames.append(target.name)
        return rename(path, target)

    with monkeypatch.context() as patch, pytest.raises(Kill):
        patch.setattr(Path, "rename", die_before_the_second)
        checkpoints_in(tmp_path).save(learner, state(2), best=True)
    assert renames == [".old-best"] and not (folder / "best").exists()
    assert find_folder(folder / "best") == folder / ".old-best"
    assert find_checkpoint(tmp_path, "best") == folder / ".old-best"
    assert resolve_model_name(str(folder / "best")) == str(folder / ".old-best")
    assert read_state(find_folder(folder / "best")) == before
    with pytest.raises(UserError, match='did you mean "best"'):
        find_checkpoint(tmp_path, "bset")
    checkpoints_in(tmp_path).sweep()
    assert find_folder(folder / "best") == folder / "best"


def test_sweep_puts_back_a_checkpoint_that_was_being_replaced(tmp_path: Path, saved: Path) -> None:
    folder = copy_of(saved, tmp_path)
    before = read_state(folder / "best")
    (folder / "best").rename(folder / ".old-best")
    shutil.copytree(folder / "step_000002", folder / ".old-step_000002")
    checkpoints_in(tmp_path).sweep()
    assert sorted(path.name for path in folder.iterdir()) == ["best", "step_000001", "step_000002"]
    assert read_state(folder / "best") == before


def test_sweep_deletes_own_leftovers_and_keeps_hidden_files_of_users(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir()
    (target / "notes.txt").write_text("kept")
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for name in (".writing-best", ".removed-step_000001", ".step_000002.17-ab.partial", ".notes"):
        (folder / name).mkdir()
    (folder / ".state.json.part").touch()
    (folder / ".gitignore").touch()
    for name in (".mine", ".linked.partial"):
        (folder / name).symlink_to(target)
    checkpoints_in(tmp_path).sweep()
    assert {path.name for path in folder.iterdir()} == {".notes", ".gitignore", ".mine"}
    assert (target / "notes.txt").read_text() == "kept"


def test_kill_while_deleting_leaves_no_partial_checkpoint(
    tmp_path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(folder: Path, **_: object) -> None:
        if folder.exists():
            (folder / "model.safetensors").unlink()
            raise Kill

    folder, store = copy_of(saved, tmp_path), checkpoints_in(tmp_path, keep_last=1)
    shutil.rmtree(folder / ".writing-step_000003")
    with monkeypatch.context() as patch, pytest.raises(Kill):
        patch.setattr(disk.shutil, "rmtree", half)
        store.drop_after(folder / "step_000001")
    whole = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
    assert sorted(whole) == ["best", "step_000001"]
    store.sweep()
    assert not list(folder.glob(".*"))


def test_save_does_not_rewrite_the_same_state(tmp_path: Path, saved: Path) -> None:
    """Replacing a folder takes two renames, and a kill between them would lose it."""
    folder = copy_of(saved, tmp_path)
    before = (folder / "step_000002/state.json").stat().st_ino
    assert checkpoints_in(tmp_path).save(trained(0), state(2)) == folder / "step_000002"
    assert (folder / "step_000002/state.json").stat().st_ino == before


def test_restore_rejects_the_state_of_another_model(tmp_path: Path, saved: Path) -> None:
    folder = copy_of(saved, tmp_path) / "step_000002"
    tensors = load_file(folder / "learner.safetensors")
    name = next(name for name, tensor in tensors.items() if name.startswith("optimizer.") and tensor.ndim == 2)
    save_file(tensors | {name: tensors[name][1:].clone()}, folder / "learner.safetensors")
    with pytest.raises(
        UserError, match=rf"^Checkpoint {folder} does not fit the settings of its run \(.* shape .*\)\."
    ):
        restore(folder, make_learner(CONFIG), state(2), load)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "a missing file": lambda path: path.unlink(),
    "an empty file": lambda path: path.write_bytes(b""),
    "a file cut short": cut_short,
    "a flipped bit": flip_a_bit,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "name", ["model.safetensors", "learner.safetensors", "state.json", "config.json", "tokenizer.json"]
)
def test_damaged_checkpoint_is_skipped_for_an_older_one(
    tmp_path: Path, saved: Path, caplog: pytest.LogCaptureFixture, name: str, damage: str
) -> None:
    folder = copy_of(saved, tmp_path)
    assert last_checkpoint(folder) == folder / "step_000002" and not caplog.messages
    DAMAGES[damage](folder / "step_000002" / name)
    assert last_checkpoint(folder) == folder / "step_000001"
    (warning,) = caplog.messages
    assert re.search(r"step_000002 is damaged: .*\. Using the older checkpoint step_000001 instead\.$", warning)
    assert f"{name} " in warning and "Errno" not in warning
    DAMAGES[damage](folder / "step_000001" / name)
    with pytest.raises(UserError, match=r"No other checkpoint in .* is complete: start a new run with its settings"):
        last_checkpoint(folder)


def test_checkpoint_copied_over_that_of_another_step_is_skipped(
    tmp_path: Path, saved: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = copy_of(saved, tmp_path)
    shutil.rmtree(folder / "step_000002")
    shutil.copytree(folder / "step_000001", folder / "step_000002")
    assert last_checkpoint(folder) == folder / "step_000001"
    assert "step_000002 is damaged: it is a copy of step 1." in caplog.text


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_state_of_a_sharded_learner_is_detected(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "step_000001"
    (folder / "learner").mkdir(parents=True)
    for name in (".metadata", "__0_0.distcp", "__1_0.distcp"):
        (folder / "learner" / name).write_bytes(name.encode())
    checkpoints_module._write_state(folder, state(1))
    assert read_state(folder) == state(1)
    DAMAGES[damage](folder / "learner" / ".metadata")
    with pytest.raises(UserError, match=r"damaged: .*learner/\.metadata"):
        read_state(folder)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_read_state_detects_changed_bits(saved: Path, place: int, bit: int) -> None:
    path = saved / "checkpoints/step_000002/state.json"
    whole = path.read_bytes()
    data = bytearray(whole)
    data[place % len(data)] ^= 1 << bit
    try:
        path.write_bytes(data)
        assert read_state(path.parent) == state(2)
    except UserError as error:
        assert "damaged" in str(error)
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize("text", ["[]", "3", '"x"', "null", "{}", '{"step": 1, "files": {}}'])
def test_read_state_rejects_other_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(UserError, match="damaged"):
        read_state(tmp_path)


def test_state_keeps_every_part_by_name(tmp_path: Path) -> None:
    parts = {"judges": {"5d41": {"calls": 3, "seconds": 0.1}}, "curriculum": {"bandit:1": [1.0, 2.0]}}
    checkpoints_module._write_state(tmp_path, State(step=1, skipped_steps=0, parts=parts))
    assert read_state(tmp_path) == State(step=1, skipped_steps=0, parts=parts)


def test_state_of_an_older_version_is_read_without_its_parts(tmp_path: Path) -> None:
    """So that such a model can be evaluated and trained further."""
    old = {"step": 1, "best_success": None, "skipped_steps": 3, "coefficients": {"kl_coef": 0.1}, "files": {}}
    (tmp_path / "state.json").write_text(json.dumps({**old, "digest": checkpoints_module._digest_of(old)}))
    assert read_state(tmp_path) == State(step=1, skipped_steps=3, version=1)


def test_last_checkpoint_reports_that_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint yet"):
        last_checkpoint(tmp_path / "checkpoints")


class Kill(BaseException):
    """Stands in for SIGKILL: nothing may be tidied up after it."""


def no_space_as_os_error(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def no_space_as_text(*_: object, **__: object) -> None:
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


def module_with(function: str) -> ModuleType:
    """Return the module that calls the function: the learner writes the model and its own state."""
    modules = {"write_model": learner_module, "save_file": learner_state_module}
    return modules.get(function, checkpoints_module)


@pytest.mark.parametrize(
    ("where", "failure"),
    [
        ("save_file", no_space_as_text),
        ("write_model", no_space_as_text),
        ("write_model", no_space_as_os_error),
        ("_write_state", no_space_as_os_error),
    ],
)
def test_save_reports_a_full_disk_and_keeps_checkpoints(
    tmp_path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch, where: str, failure: Callable[..., None]
) -> None:
    folder = copy_of(saved, tmp_path)
    shutil.rmtree(folder / ".writing-step_000003")
    monkeypatch.setattr(module_with(where), where, failure)
    with pytest.raises(
        UserError,
        match=r"No disk space left to write .*step_000003. Free some space, then continue from the last checkpoint: `",
    ):
        checkpoints_in(tmp_path).save(trained(0), state(3))
    assert sorted(path.name for path in folder.iterdir()) == ["best", "step_000001", "step_000002"]
    assert last_checkpoint(folder) == folder / "step_000002"


@pytest.mark.parametrize("where", ["write_model", "save_file", "_write_state", "_replace"])
def test_kill_while_writing_keeps_older_checkpoints(
    tmp_path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def kill(*_: object, **__: object) -> None:
        raise Kill

    folder, learner = copy_of(saved, tmp_path), trained(0)
    shutil.rmtree(folder / ".writing-step_000003")
    with monkeypatch.context() as patch, pytest.raises(Kill):
        patch.setattr(module_with(where), where, kill)
        patch.setattr(checkpoints_module.shutil, "rmtree", lambda *_, **__: None)
        checkpoints_in(tmp_path).save(learner, state(3))
    assert (folder / ".writing-step_000003").exists()
    assert last_checkpoint(folder) == folder / "step_000002"
    checkpoints_in(tmp_path).save(learner, state(3))
    assert last_checkpoint(folder) == folder / "step_000003"
    assert not list(folder.glob(".*"))


@pytest.mark.skipif(sys.platform != "linux", reason="the names of open files are in /proc")
def test_checkpoint_and_records_are_flushed_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before their names exist: a power cut leaves no checkpoint and no record with missing contents."""
    events: list[Path] = []

    def name_of(descriptor: int) -> Path:
        return Path(f"/proc/self/fd/{descriptor}").readlink()

    monkeypatch.setattr(os, "fsync", lambda descriptor: events.append(name_of(descriptor)))
    saved = checkpoints_in(tmp_path).save(trained(1), state(1))
    written = {path.relative_to(saved) for path in (saved, *saved.rglob("*"))}
    partial = next(path for path in events if path.name == "state.json").parent
    assert {path.relative_to(partial) for path in events if path.is_relative_to(partial)} == written
    assert partial != saved and events[-1] == saved.parent
    events.clear()
    disk.write_atomic(tmp_path / "summary.json", b"{}")
    assert len(events) == 2 and events[0].name != "summary.json" and events[1] == tmp_path


def test_state_lists_every_file_of_the_checkpoint(saved: Path) -> None:
    folder = saved / "checkpoints/step_000002"
    recorded = json.loads((folder / "state.json").read_text())
    assert set(recorded["files"]) == {path.name for path in folder.iterdir()} - {"state.json"}


@pytest.mark.parametrize("best", [False, True])
def test_checkpoints_reject_non_finite_weights_and_keep_old_ones(tmp_path: Path, best: bool) -> None:
    learner, store = trained(1), checkpoints_in(tmp_path)
    path = store.save(learner, state(1), best=best)
    before = read_state(path)
    with torch.no_grad():
        next(learner.model.parameters()).view(-1)[-1] = float("nan")
    with pytest.raises(DivergedError, match="not finite at step 2 and are not saved"):
        store.save(learner, state(2), best=best)
    assert read_state(path) == before and sorted(each.name for each in store.folder.iterdir()) == [path.name]


def test_checkpoints_reject_a_non_finite_critic(tmp_path: Path) -> None:
    learner, store = trained(1), checkpoints_in(tmp_path)
    assert learner.critic is not None
    with torch.no_grad():
        next(learner.critic.parameters()).view(-1)[-1] = float("inf")
    with pytest.raises(DivergedError):
        store.save(learner, state(1))


def test_checkpoints_ignore_other_files_in_the_folder(tmp_path: Path) -> None:
    learner, store = trained(1), checkpoints_in(tmp_path, keep_last=1)
    store.folder.mkdir()
    files = [store.folder / name for name in ("notes.txt", "step_notes.txt", "step_000009", "step_000001.zip")]
    for each in files:
        each.write_text("mine")
    copy = store.folder / "step_000001_copy"
    copy.mkdir()
    (store.folder / "best").write_text("a file where a folder belongs")
    assert store.newest() is None
    for step in (1, 2, 3):
        store.save(learner, state(step))
        store.save(learner, state(step), best=True)
    assert store.steps() == [store.folder / "step_000003"] and store.newest() == (store.steps()[0], state(3))
    assert last_checkpoint(store.folder) == store.steps()[0]
    assert all(each.read_text() == "mine" for each in files) and copy.is_dir()
    assert read_state(store.folder / "best").step == 3
    store.drop_after(store.folder / "step_000002")
    assert store.steps() == [] and all(each.exists() for each in files)


def test_checkpoints_are_ordered_by_step_and_not_by_name(tmp_path: Path) -> None:
    for name in ("step_1000000", "step_999999"):
        (tmp_path / name).mkdir()
    assert [each.name for each in step_folders(tmp_path)] == ["step_999999", "step_1000000"]
