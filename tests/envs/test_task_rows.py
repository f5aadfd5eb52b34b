"""Rows of tasks: files, splits that never share a task, and rows that are read when a task needs them."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from turnwise.core.errors import UserError
from turnwise.core.random_streams import address
from turnwise.envs.tools.task_rows import SPLITS, TaskTable, get_question, load_questions
from turnwise.run.configure import load_target


def write(folder: Path, name: str, text: str, encoding: str = "utf-8") -> str:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding=encoding, newline="")
    return str(folder / name)


def write_rows(folder: Path, name: str, rows: Iterable[Mapping[str, Any]]) -> str:
    return write(folder, name, "".join(json.dumps(row) + "\n" for row in rows))


def questions(*numbers: int) -> list[dict[str, str]]:
    return [{"question": f"{number} + 1?", "answer": str(number + 1)} for number in numbers]


def asked(table: TaskTable) -> dict[str, list[str]]:
    return {split: [get_question(row) for row in rows] for split, rows in table.splits.items()}


def test_rows_may_start_with_a_byte_order_mark(tmp_path: Path) -> None:
    line = '{"question": "2 + 3?", "answer": 5}\n'
    table = load_questions(write(tmp_path, "marked.jsonl", line, "utf-8-sig"))
    assert list(table.rows) == [{"question": "2 + 3?", "answer": 5}]
    table = load_questions(write(tmp_path, "marked.csv", "question,answer\n2 + 3?,5\n", "utf-8-sig"))
    assert list(table.rows) == [{"question": "2 + 3?", "answer": "5"}]


def test_unicode_line_separators_do_not_split_rows(tmp_path: Path) -> None:
    path = write(tmp_path, "lines.jsonl", '{"question": "a\u2028b\x85c"}\r\n\r\n{"question": "d"}')
    assert [row["question"] for row in load_questions(path).rows] == ["a\u2028b\x85c", "d"]


def test_csv_columns_come_from_the_first_row(tmp_path: Path) -> None:
    text = 'question,answer,split\r\n"Which, ""a"" or\nb?",a,train\r\n2 + 3?,5,test\r\n7?,7,\r\n'
    table = load_questions(write(tmp_path, "rows.csv", text))
    first, second, third = table.rows
    assert first == {"question": 'Which, "a" or\nb?', "answer": "a", "split": "train"}
    assert table.of_split("test")[0] == second and third["split"] == ""


WRONG = {
    "question,answer\n1?,2,3\n": "line 2 has more or fewer values than columns: fix it",
    "question,answer\n1?\n": "line 2 has more or fewer values than columns: fix it",
    'question,answer\n"1?,2\n': "is not valid CSV (unexpected end of data): fix it",
    "q,answer\n1?,2\n": "line 2 has no question: it has q, answer; add one of the columns question, prompt",
    "": "has no rows",
}


@pytest.mark.parametrize("text", WRONG)
def test_malformed_file_error_names_the_line(text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        load_questions(write(tmp_path, "rows.csv", text))
    assert WRONG[text] in str(error.value) and "\n" not in str(error.value)


def test_malformed_line_error_counts_blank_lines(tmp_path: Path) -> None:
    path = write(tmp_path, "rows.jsonl", '{"question": "1?"}\n\n{"question": }\n')
    with pytest.raises(UserError, match=r"rows\.jsonl line 3 is not valid JSON"):
        load_questions(path)


def test_task_file_is_relative_to_the_recipe(tmp_path: Path) -> None:
    recipe = write(tmp_path, "own.toml", '[env]\nkind = "tools"\ntasks = "rows.csv"\n')
    assert load_target(recipe)["env"]["tasks"] == f"{tmp_path}/rows.csv"


def test_dataset_is_a_target_with_a_reward(tmp_path: Path) -> None:
    path, reward = write_rows(tmp_path, "rows.jsonl", questions(1)), [("env.params.reward", "exact_match")]
    assert load_target(path, reward) == {"env": {"kind": "tools", "params": {"tasks": path}}}
    assert load_target(str(tmp_path), reward)["env"]["params"]["tasks"] == str(tmp_path)
    with pytest.raises(UserError, match=r"nothing scores the answers\. Add --reward"):
        load_target(path)


def test_run_folder_is_no_dataset(tmp_path: Path) -> None:
    write_rows(tmp_path, "metrics.jsonl", [{"step": 0}])
    write(tmp_path, "config.toml", "")
    with pytest.raises(UserError, match="is a run, not an environment"):
        load_target(str(tmp_path), [("env.params.reward", "exact_match")])


def test_names_of_files_and_folders_say_the_split(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow
    import pyarrow.parquet

    for name, numbers in {"main/train-00000-of-00002": (1, 2), "main/train-00001-of-00002": (3,)}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        table = pyarrow.Table.from_pylist(questions(*numbers))
        pyarrow.parquet.write_table(table, tmp_path / f"{name}.parquet", row_group_size=1)
    write_rows(tmp_path, "validation/part.jsonl", questions(4))
    write_rows(tmp_path, "test.jsonl", questions(5, 6))
    table = load_questions(str(tmp_path))
    assert asked(table) == {
        "train": ["1 + 1?", "2 + 1?", "3 + 1?"],
        "validation": ["4 + 1?"],
        "test": ["5 + 1?", "6 + 1?"],
    }
    assert table.of_split("train")[1] == {"question": "2 + 1?", "answer": "3"} and table.repeated == 0


def test_training_tasks_are_held_out_for_a_split_without_file(tmp_path: Path) -> None:
    write_rows(tmp_path, "train.jsonl", questions(*range(400)))
    write_rows(tmp_path, "test.jsonl", questions(1000, 1001))
    tasks = asked(load_questions(str(tmp_path)))
    assert tasks["test"] == ["1000 + 1?", "1001 + 1?"]
    assert 20 < len(tasks["validation"]) < 60 and len(tasks["train"]) + len(tasks["validation"]) == 400
    assert all(address(question) % 10 == 0 for question in tasks["validation"])


def test_held_out_tasks_are_never_trained_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [
        *({**row, "split": "train"} for row in questions(1, 2, 2, 3)),
        *({**row, "split": "validation"} for row in questions(3, 4)),
        *({**row, "split": "test"} for row in questions(2, 4)),
    ]
    table = load_questions(write_rows(tmp_path, "rows.jsonl", rows))
    assert asked(table) == {"train": ["1 + 1?"], "validation": ["3 + 1?"], "test": ["2 + 1?", "4 + 1?"]}
    assert table.repeated == 4 and "4 of the 8 rows of " in caplog.text


def test_hash_puts_equal_questions_into_one_split(tmp_path: Path) -> None:
    rows = [{**row, "answer": str(copy)} for copy in range(2) for row in questions(*range(40))]
    table = load_questions(write_rows(tmp_path, "rows.jsonl", rows))
    tasks = asked(table)
    assert sum(map(len, tasks.values())) == 80 and table.repeated == 0
    assert not set(tasks["train"]) & (set(tasks["validation"]) | set(tasks["test"]))
    assert all(tasks[split] for split in SPLITS)


def test_rows_are_read_when_they_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_rows(tmp_path, "rows.jsonl", questions(*range(50)))
    table = load_questions(path)
    parsed: list[str] = []
    monkeypatch.setattr("turnwise.files.stored_rows.parse_json", lambda text, where: parsed.append(where) or {"x": 1})
    Path(path).unlink()  # the file stays open
    assert table.rows[7] == {"x": 1} and parsed == [f"{path} line 8"]


def test_parquet_needs_pyarrow_or_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "rows.parquet", "")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"rows\.parquet needs pyarrow\. Run `pip install 'turnwise\[datasets\]'`"):
        load_questions(path)


def test_damaged_parquet_file_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with pytest.raises(UserError, match=r"rows\.parquet is damaged \(.*\)\. Restore it\.") as error:
        load_questions(write(tmp_path, "rows.parquet", "not parquet"))
    assert "\n" not in str(error.value)


def cache_dataset(cache: Path, name: str, revision: str, rows: list[dict[str, str]]) -> None:
    """Put a dataset where `huggingface_hub` keeps what it has downloaded."""
    repository = cache / f"datasets--{name.replace('/', '--')}"
    write_rows(repository / "snapshots" / ("a" * 40) / "main", "train.jsonl", rows)
    write(repository / "refs", revision, "a" * 40)


def test_dataset_of_the_hub_comes_from_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    cache_dataset(tmp_path, "owner/sums", "main", questions(*range(60)))
    table = load_questions("hf://datasets/owner/sums/main")
    assert len(table.rows) == 60 and table.of_split("test")
    with pytest.raises(UserError, match=r"the dataset owner/other cannot be loaded from the Hugging Face hub"):
        load_questions("hf://datasets/owner/other")
