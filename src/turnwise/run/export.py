"""`turnwise export` and `turnwise merge`: write a Hugging Face model folder."""

import shutil
from pathlib import Path

from turnwise.core.errors import UserError
from turnwise.files.disk import atomic_folder
from turnwise.models.loading.load import load_model
from turnwise.models.loading.lora import base_model_of, merge_adapter
from turnwise.models.loading.model_files import is_adapter
from turnwise.models.loading.save import save_model
from turnwise.run.find_model import find_checkpoint
from turnwise.run.find_source import check_free, find_source
from turnwise.training.checkpoints import OWN_FILES


def export(run: str, to: Path) -> None:
    """Export the model of a run's last checkpoint, or of RUN/checkpoints/NAME, without the training state.

    An adapter is merged into its base model. The folder `to` is written atomically.
    """
    source = find_checkpoint(*find_source(run))
    if is_adapter(source):
        _merge(source, to)
        return
    check_free(to)
    with atomic_folder(to) as aside:
        for file in source.iterdir():
            if file.name not in OWN_FILES:
                shutil.copy2(file, aside / file.name)


def merge(adapter: str, into: Path) -> None:
    """Merge an adapter, a folder in PEFT's format or a run that trained one, into its base model."""
    folder = Path(adapter).expanduser()
    if not is_adapter(folder):
        folder = find_checkpoint(*find_source(adapter))
    if not is_adapter(folder):
        raise UserError(f"{adapter} is a whole model, not an adapter. Use turnwise export.")
    _merge(folder, into)


def _merge(adapter: Path, into: Path) -> None:
    check_free(into)
    base = load_model(base_model_of(adapter))
    save_model(merge_adapter(base.model, adapter), base.tokenizer, into)
