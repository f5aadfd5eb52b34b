"""Files of a dataset: one file, a folder, or a dataset of the Hugging Face hub. Their names may say their split.

tasks.jsonl                          one file
FOLDER                               train.jsonl, test-00000-of-00002.parquet, validation/part.parquet, ...
hf://datasets/OWNER/NAME             a dataset of the hub, in the cache of `huggingface_hub`
hf://datasets/OWNER/NAME@REV/FOLDER  its files in a folder, such as a configuration, at a revision
"""

import re
from dataclasses import dataclass
from pathlib import Path

from turnwise.core.errors import UserError, not_a_file
from turnwise.core.task import Split
from turnwise.files.run_folders import CONFIG_FILE
from turnwise.files.table_files import READERS
from turnwise.text.truncation import first_line

HUB = re.compile(r"hf://datasets/(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^/\s]+))?(?:/(?P<folder>\S*))?")
CONVERTED = "refs/convert/parquet"
"""Revision of a dataset with script in which the hub keeps its rows as Parquet."""
SPLIT_OF_WORD: dict[str, Split] = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
    "eval": "test",
    "evaluation": "test",
}
"""Words in the names of files and folders -> split, as the hub reads them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFile:
    path: Path
    split: Split | None
    """Split that its name says; None if it says none."""


def is_on_hub(dataset: str) -> bool:
    return HUB.fullmatch(dataset) is not None


def is_dataset(target: str) -> bool:
    """Return whether a text names a file of rows, a folder with some (but not a run), or a dataset of the hub."""
    path = Path(target).expanduser()
    if is_on_hub(target) or path.suffix.lower() in READERS:
        return True
    return path.is_dir() and not (path / CONFIG_FILE).exists() and bool(_files_in(path))


def find_dataset_files(dataset: str, *, setting: str) -> list[DatasetFile]:
    """Return the files of a dataset, after a download from the hub if need be. `setting` names it in errors."""
    if (hub := HUB.fullmatch(dataset)) is not None:
        folder = _download(hub["name"], hub["revision"], (hub["folder"] or "").strip("/"), setting)
    else:
        folder = Path(dataset).expanduser()
        if folder.is_file():
            return [DatasetFile(path=folder, split=None)]
        if not folder.is_dir():
            raise UserError(f"{setting}: {not_a_file(folder)}. Give a file of rows, a folder or hf://datasets/NAME.")
    files = _files_in(folder)
    if not files:
        raise UserError(f"{setting}: {dataset} has no file that ends in {', '.join(READERS)}. Give other files.")
    return [DatasetFile(path=file, split=split_of_name(file.relative_to(folder))) for file in files]


def split_of_name(name: Path) -> Split | None:
    """Return the split that the name of a file says, or else that of its innermost folder; None if none does."""
    for part in (name.stem, *reversed(name.parent.parts)):
        for word in re.split(r"[^a-z]+", part.lower()):
            if word in SPLIT_OF_WORD:
                return SPLIT_OF_WORD[word]
    return None


def _files_in(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.suffix.lower() in READERS and file.is_file())


def _download(name: str, revision: str | None, folder: str, setting: str) -> Path:
    """Return the local folder of a dataset's files."""
    from huggingface_hub import snapshot_download

    patterns = [f"{folder}/*{ending}" if folder else f"*{ending}" for ending in READERS]
    path = Path()
    try:
        for candidate in (revision,) if revision else (None, CONVERTED):
            files = snapshot_download(name, repo_type="dataset", revision=candidate, allow_patterns=patterns)
            path = Path(files) / folder
            if path.is_dir() and _files_in(path):
                break
    except Exception as error:  # offline: every HTTP library has its own errors
        raise UserError(
            f"{setting}: the dataset {name} cannot be loaded from the Hugging Face hub ({first_line(error, 120)}). "
            "Check its name, log in with `hf auth login`, or give its folder."
        ) from error
    return path
