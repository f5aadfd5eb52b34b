"""What judges spent, as a run's folder has it."""

from pathlib import Path

import pytest

from turnwise.core.errors import UserError
from turnwise.record.run_folder import JUDGES_FILE, JudgeUsage


def test_spending_is_added_up_for_each_judge_and_a_half_line_is_dropped(tmp_path: Path) -> None:
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
def test_a_line_that_says_nothing_of_a_judge_is_told(line: str, tmp_path: Path) -> None:
    (tmp_path / JUDGES_FILE).write_text(f"{line}\n")
    with pytest.raises(UserError, match=rf"{JUDGES_FILE} line 1 .*delete"):
        JudgeUsage(tmp_path).read()


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / JUDGES_FILE).mkdir()
    with pytest.raises(UserError, match=rf"cannot write .*{JUDGES_FILE}.* --resume {tmp_path}"):
        JudgeUsage(tmp_path).add("a", 1, 5)
