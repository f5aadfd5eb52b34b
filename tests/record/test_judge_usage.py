from pathlib import Path

import pytest

from turnwise.core.errors import UserError
from turnwise.record.judge_usage import JUDGES_FILE, JudgeUsage


def test_judge_usage_adds_up_and_drops_a_partial_line(tmp_path: Path) -> None:
    spending = JudgeUsage(tmp_path)
    assert spending.read() == {} and not (tmp_path / JUDGES_FILE).exists()
    spending.add("a", 1, 500)
    spending.add("b", 1, 70)
    spending.add("a", 0, -400)
    spending.add("a", 1, 500)
    with (tmp_path / JUDGES_FILE).open("ab") as file:
        file.write(b'{"judge": "a", "cal')
    spent = {"a": {"calls": 2, "tokens": 600}, "b": {"calls": 1, "tokens": 70}}
    assert JudgeUsage(tmp_path).read() == spent
    spending.add("b", 0, 5)
    assert spending.read() == spent | {"b": {"calls": 1, "tokens": 75}}


@pytest.mark.parametrize("line", ["nonsense", '{"judge": "a"}', '{"judge": 1, "calls": 1, "tokens": 1}'])
def test_judge_usage_names_an_invalid_line(line: str, tmp_path: Path) -> None:
    (tmp_path / JUDGES_FILE).write_text(f"{line}\n")
    with pytest.raises(UserError, match=rf"{JUDGES_FILE} line 1 .*delete"):
        JudgeUsage(tmp_path).read()


def test_judge_usage_explains_a_write_error(tmp_path: Path) -> None:
    (tmp_path / JUDGES_FILE).mkdir()
    with pytest.raises(UserError, match=rf"Cannot write .*{JUDGES_FILE}.* --resume {tmp_path}"):
        JudgeUsage(tmp_path).add("a", 1, 5)
