import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from turnwise.core.errors import UserError
from turnwise.files.disk import atomic_folder
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.loading.load import load_model
from turnwise.models.loading.save import save_model
from turnwise.models.loading.tiny import tiny_model, tiny_tokenizer


class FailingTokenizer:
    """Fails after the model was written, the last moment at which the folder is incomplete."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def save_pretrained(self, folder: Path) -> Any:
        raise self.error


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_save_model_stores_tied_weights_once(tmp_path: Path) -> None:
    save_model(tiny_model(0), tiny_tokenizer(), tmp_path / "new" / "model")
    stored = load_file(tmp_path / "new" / "model" / "model.safetensors")
    assert sum(tensor.numel() for tensor in stored.values()) == sum(p.numel() for p in tiny_model(0).parameters())
    assert names_in(tmp_path / "new") == ["model"]


def test_save_model_keeps_bfloat16_bit_for_bit(tmp_path: Path) -> None:
    model = load_model("tiny", dtype="bfloat16").model
    save_model(model, tiny_tokenizer(), tmp_path / "model")
    again = load_model(str(tmp_path / "model"), dtype="bfloat16").model.state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in model.state_dict().items())


def test_save_model_does_not_store_the_attention_function(tmp_path: Path) -> None:
    loaded = load_model("tiny", attn_implementation=ATTENTION)
    assert loaded.model.config._attn_implementation == ATTENTION
    save_model(loaded.model, loaded.tokenizer, tmp_path / "model")
    assert ATTENTION not in (tmp_path / "model" / "config.json").read_text()


def test_save_model_gives_all_files_the_same_mode(tmp_path: Path) -> None:
    save_model(tiny_model(0), tiny_tokenizer(), tmp_path / "model")
    assert len({file.stat().st_mode for file in (tmp_path / "model").iterdir()}) == 1


def test_save_model_never_overwrites_a_folder(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "precious").write_text("x")
    with pytest.raises(UserError, match="model already exists: choose another folder"):
        save_model(tiny_model(0), tiny_tokenizer(), tmp_path / "model")
    assert names_in(tmp_path / "model") == ["precious"]
    assert names_in(tmp_path) == ["model"]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_save_model_on_a_full_disk_leaves_nothing(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(UserError, match=r"No disk space left to write .*model: free some"):
        save_model(tiny_model(0), FailingTokenizer(error), tmp_path / "model")
    assert names_in(tmp_path) == []


def test_save_model_without_permission_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="Cannot write"):
        save_model(tiny_model(0), tiny_tokenizer(), tmp_path / "file" / "model")


def test_save_model_interrupted_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        save_model(tiny_model(0), FailingTokenizer(KeyboardInterrupt()), tmp_path / "model")
    assert names_in(tmp_path) == []


def test_atomic_folder_appears_only_when_complete(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "model") as aside:
        (aside / "part").write_text("1")
        assert not (tmp_path / "model").exists()
        assert aside.parent == tmp_path
    assert (tmp_path / "model" / "part").read_text() == "1"


def test_atomic_folder_of_a_killed_process_does_not_appear(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        with atomic_folder(tmp_path / "model") as aside:
            (aside / "part").write_text("1")
            os.kill(os.getpid(), 9)
    assert os.waitpid(child, 0)[1] == 9
    assert not (tmp_path / "model").exists()
    with atomic_folder(tmp_path / "model") as aside:
        (aside / "part").write_text("2")
    assert (tmp_path / "model" / "part").read_text() == "2"


def test_atomic_folder_first_writer_wins(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError), atomic_folder(tmp_path / "model") as late:
        (late / "who").write_text("late")
        with atomic_folder(tmp_path / "model") as early:
            (early / "who").write_text("early")
    assert (tmp_path / "model" / "who").read_text() == "early"
    assert names_in(tmp_path) == ["model"]


def test_save_model_reports_a_lost_race(tmp_path: Path) -> None:
    class Racer(FailingTokenizer):
        def save_pretrained(self, folder: Path) -> Any:
            (tmp_path / "model").mkdir()
            (tmp_path / "model" / "precious").write_text("x")

    with pytest.raises(UserError, match="exists"):
        save_model(tiny_model(0), Racer(OSError()), tmp_path / "model")
    assert names_in(tmp_path / "model") == ["precious"]
