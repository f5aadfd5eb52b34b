"""Task rows in JSONL and CSV files."""

from pathlib import Path

import pytest

from turnwise.core.errors import UserError
from turnwise.envs.tools.task_rows import read_rows, rows_of_split
from turnwise.run.configure import load_target


def written(folder: Path, name: str, text: str, encoding: str = "utf-8") -> str:
    (folder / name).write_text(text, encoding=encoding, newline="")
    return str(folder / name)


def test_read_rows_accepts_a_byte_order_mark(tmp_path: Path) -> None:
    line = '{"question": "2 + 3?", "answer": 5}\n'
    assert read_rows(written(tmp_path, "marked.jsonl", line, "utf-8-sig")) == ({"question": "2 + 3?", "answer": 5},)
    table = "question,answer\n2 + 3?,5\n"
    assert read_rows(written(tmp_path, "marked.csv", table, "utf-8-sig")) == ({"question": "2 + 3?", "answer": "5"},)


def test_unicode_line_separators_do_not_split_rows(tmp_path: Path) -> None:
    path = written(tmp_path, "lines.jsonl", '{"question": "a\u2028b\x85c"}\r\n\r\n{"question": "d"}')
    assert [row["question"] for row in read_rows(path)] == ["a\u2028b\x85c", "d"]


def test_csv_columns_come_from_the_first_row(tmp_path: Path) -> None:
    text = 'question,answer,split\r\n"Which, ""a"" or\nb?",a,train\r\n2 + 3?,5,test\r\n7?,7,\r\n'
    path = written(tmp_path, "rows.csv", text)
    first, second, third = read_rows(path)
    assert first == {"question": 'Which, "a" or\nb?', "answer": "a", "split": "train"}
    assert rows_of_split(path, "test")[0] == second and third["split"] == ""


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
        read_rows(written(tmp_path, "rows.csv", text))
    assert WRONG[text] in str(error.value) and "\n" not in str(error.value)


def test_task_file_is_relative_to_the_recipe(tmp_path: Path) -> None:
    recipe = written(tmp_path, "own.toml", '[env]\nkind = "tools"\ntasks = "rows.csv"\n')
    assert load_target(recipe)["env"]["tasks"] == f"{tmp_path}/rows.csv"
