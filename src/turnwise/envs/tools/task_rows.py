"""Rows of tasks from a file or a dataset: checked once, divided into splits, and read when a task needs them."""

import hashlib
import json
import logging
from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from turnwise.core.errors import UserError, read_failure
from turnwise.core.messages import Message, user
from turnwise.core.random_streams import address
from turnwise.core.task import Split
from turnwise.envs.param_setting import param_setting
from turnwise.envs.seeds import FIRST_SEED, split_of_state
from turnwise.files.datasets import DatasetFile, find_dataset_files
from turnwise.files.stored_rows import StoredRows, open_rows
from turnwise.render.chat_rows import RowImages, parse_messages
from turnwise.text.truncation import describe_value

log = logging.getLogger(__name__)

QUESTION_COLUMNS = ("question", "prompt", "problem", "input", "messages")
"""Columns that may hold the question, a text or a list of messages; the first that a row has counts."""
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
"""In the order in which they claim a task that is in several: the last one has it."""
HELD_OUT_SHARE = 10
"""One in this many training tasks goes to each held-out split of which a dataset has no file."""

Row = dict[str, Any]
CheckRow = Callable[[Any, str], Row]
"""(value, source) -> the row, or UserError."""
GetKey = Callable[[Row], str]
"""Return the key of a row's question. Rows with the same key are in the same split."""


class TaskRows(Sequence[Row]):
    """Some rows of a dataset."""

    def __init__(self, files: Sequence[StoredRows]) -> None:
        self._files, self._file_numbers, self._numbers = files, array("H"), array("q")

    def append(self, file: int, number: int) -> None:
        self._file_numbers.append(file)
        self._numbers.append(number)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[index] for index in range(len(self))[number]]
        return self._files[self._file_numbers[number]].read(self._numbers[number])

    def source(self, number: int) -> str:
        """Return where the row is, such as "rows.jsonl line 3"."""
        return self._files[self._file_numbers[number]].source(self._numbers[number])

    def folder(self, number: int) -> Path:
        """Return the folder of the row's file, in which its images are."""
        return self._files[self._file_numbers[number]].file.parent


class TaskTable:
    """The rows of a dataset by split. `setting` names the dataset in errors."""

    def __init__(self, dataset: str, *, setting: str, check: CheckRow, get_key: GetKey) -> None:
        self.dataset, self._get_key = dataset, get_key
        files = find_dataset_files(dataset, setting=setting)
        stored = [_open(file, setting) for file in files]
        if not any(map(len, stored)):
            raise UserError(_describe_empty(files, setting))
        keys, ranks = array("q"), array("b")
        missing = _splits_without_file(files)
        for file, rows in zip(files, stored, strict=True):
            for number in range(len(rows)):
                source = rows.source(number)
                row = _check_split(check(rows.read(number), source), source)
                key = get_key(row)
                split = row.get("split") or file.split or split_of_state(key)
                keys.append(address(key))
                ranks.append(SPLITS.index(_hold_out(split, keys[-1], missing) if file.split else split))
        self._divide(stored, keys, ranks)

    def _divide(self, stored: Sequence[StoredRows], keys: "array[int]", ranks: "array[int]") -> None:
        """Put each row into its split, without those whose task a later split has too."""
        self.rows = TaskRows(stored)
        self.splits = {split: TaskRows(stored) for split in SPLITS}
        self.counts, self.repeated = dict.fromkeys(SPLITS, 0), 0
        last_rank: dict[int, int] = {}
        for key, rank in zip(keys, ranks, strict=True):
            if rank:
                last_rank[key] = max(rank, last_rank.get(key, 0))
        index = 0
        for file, rows in enumerate(stored):
            for number in range(len(rows)):
                self.rows.append(file, number)
                rank = ranks[index]
                if rank == last_rank.get(keys[index], 0):
                    self.splits[SPLITS[rank]].append(file, number)
                else:
                    self.repeated += 1
                index += 1
        self.different = len(set(keys))
        if self.repeated:
            log.warning(
                "note: %d of the %d rows of %s ask what a row of a held-out split asks, and are not used",
                self.repeated, len(self.rows), self.dataset,
            )  # fmt: skip

    def of_split(self, split: Split) -> TaskRows:
        if rows := self.splits[split]:
            return rows
        cause = f"a hash divides its {self.different} different questions"
        if self.repeated:
            cause = f"{self.repeated} of its {len(self.rows)} rows ask what a row of a later split asks"
        raise UserError(
            f"{self.dataset} has no row for the split {split}: {cause}. Add rows, or a column split with the value "
            f"{split}."
        )


def get_question(row: Row) -> Any:
    """Return what the row asks: a text, or a list of messages that are not parsed."""
    return next(row[name] for name in QUESTION_COLUMNS if name in row)


def open_conversation(row: Row, where: str, folder: Path, *, read_images: bool = True) -> list[Message]:
    """Return the messages of the row's question with its images, whose paths begin in `folder`."""
    images, question = RowImages(row.get("images"), where, folder, read=read_images), get_question(row)
    turns = parse_messages(question, where, images) if isinstance(question, list) else [(user(str(question)), True)]
    messages = [message for message, _ in images.place_rest(turns)]
    if messages[-1].role not in ("user", "tool"):
        raise UserError(f"{where} ends with a message of the {messages[-1].role}. End it with one to answer.")
    return messages


def has_images(row: Row) -> bool:
    """Return whether the row shows images."""
    return any(message.images for message in open_conversation(row, "The row", Path(), read_images=False))


def question_text(messages: Sequence[Message]) -> str:
    """Return a question as text for rewards: the content of a single message, or a line per message."""
    if len(messages) == 1:
        return messages[0].content
    return "\n".join(f"{message.role}: {message.content}" for message in messages)


def _question_key(row: Row) -> str:
    question, images = get_question(row), row.get("images")
    if isinstance(question, list) or images:
        return json.dumps([question, images], sort_keys=True, default=_hash_bytes)
    return str(question)


def _hash_bytes(value: Any) -> str:
    return hashlib.sha256(value).hexdigest() if isinstance(value, bytes) else repr(value)


@lru_cache(maxsize=8)
def load_questions(path: str) -> TaskTable:
    """Load the rows of `env.params.tasks`."""
    return TaskTable(path, setting=param_setting("tasks"), check=_check_question, get_key=_question_key)


def _open(file: DatasetFile, setting: str) -> StoredRows:
    try:
        return open_rows(file.path)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{setting}: {read_failure(file.path, error)}: give a JSONL or CSV file.") from error


def _describe_empty(files: Sequence[DatasetFile], setting: str) -> str:
    file = files[0].path
    if file.suffix.lower() == ".csv":
        return f"{setting}: {file} has no rows below the line with the names of its columns: add some."
    return f"{setting}: {file} has no rows: write one JSON object per line."


def _splits_without_file(files: Sequence[DatasetFile]) -> list[Split]:
    """Return the held-out splits of which a dataset has no file, if its files have splits at all."""
    named = {file.split for file in files} - {None}
    return [split for split in SPLITS[1:] if split not in named] if named else []


def _hold_out(split: Split, key: int, missing: Sequence[Split]) -> Split:
    """Return the split of a row of a file: some training tasks go to the splits that have no file."""
    share = key % HELD_OUT_SHARE
    return missing[share] if split == "train" and share < len(missing) else split


def _check_question(row: Any, where: str) -> Row:
    names = ", ".join(QUESTION_COLUMNS)
    if not isinstance(row, dict):
        raise UserError(f'{where} is {describe_value(row)}, not a JSON object: write {{"question": ...}}.')
    column = next((name for name in QUESTION_COLUMNS if name in row), None)
    if column is None:
        raise UserError(f"{where} has no question: it has {', '.join(map(str, row))}; add one of the columns {names}")
    if isinstance(row[column], dict):
        raise UserError(f"{where}: {column} is a table: give the text of the user's message, or a list of messages.")
    if row[column] is None or not str(row[column]).strip():
        raise UserError(f"{where}: {column} is empty: give the text of the user's message, or remove the row.")
    if isinstance(row[column], list) or row.get("images"):
        open_conversation(row, where, Path(), read_images=False)
    return row


def _check_split(row: Row, where: str) -> Row:
    if row.get("split") not in (None, "", *FIRST_SEED):
        raise UserError(f"{where}: unknown split {row['split']!r}: use {', '.join(FIRST_SEED)}, or remove it.")
    return row
