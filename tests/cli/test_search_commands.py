"""`turnwise index` and `turnwise search`."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from turnwise.cli import main as cli

KEY = "canary-key"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "owl.md").write_text("# Owl\nHunts mice at night.\x1b[2J")
    (tmp_path / "docs" / "otter.txt").write_text("Swims in the river.")
    return tmp_path


def test_search_finds_indexed_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["index", "docs", "--to", "made/index"]) == 0
    output = capsys.readouterr().out
    assert (
        "wrote made/index: 2 passages from 2 files, 0.0 MB, in " in output
        and "next: turnwise search made/index" in output
    )
    assert cli.main(["search", "made/index", "mice by night", "--top", "1"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("1. Owl  (") and second == "   Hunts mice at night. [2J"
    assert cli.main(["search", "made/index", "zebra"]) == 0
    assert capsys.readouterr().out == "nothing found\n"


def test_index_reports_skipped_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["index", "docs", "--to", "whole"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2, "nothing was skipped"
    (folder / "docs" / "report.pdf").write_bytes(b"%PDF")
    (folder / "docs" / "empty.txt").touch()
    assert cli.main(["index", "docs", "--to", "part"]) == 0
    wrote, skipped, _ = capsys.readouterr().out.splitlines()
    assert "2 passages from 2 files" in wrote
    assert (
        skipped.startswith("skipped 1 file (report.pdf): not .txt, ")
        and "skipped 1 file (empty.txt): no text" in skipped
    )


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ("index --to x", "No files given"),
        ("index docs", "--to is missing"),
        ("index missing --to x", "missing does not exist"),
        ("index docs --to docs", "docs exists: choose another folder"),
        ("index docs --to x --characters 3", "--characters 3: must be from 100"),
        ("index docs --to x --query-prefix q:", "give --dense MODEL"),
        ("index docs --to x --dense nowhere", "no encoder nowhere"),
        ("search docs owl", "docs is not a search index"),
        ("search docs", "Give a query, `turnwise search INDEX QUERY`, or --serve"),
        ("search docs owl --serve", "Give a query, `turnwise search INDEX QUERY`, or --serve"),
        ("search docs owl --top 0", "--top 0: must be from 1"),
    ],
)
def test_wrong_arguments_print_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], tokens: str, message: str
) -> None:
    assert cli.main(tokens.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert sorted(path.name for path in folder.iterdir()) == ["docs"], "nothing is left behind"


def test_search_serves_an_index_with_a_key_until_ctrl_c(folder: Path) -> None:
    assert cli.main(["index", "docs", "--to", "index"]) == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "turnwise", "search", "index", "--serve", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TURNWISE_SEARCH_KEY": KEY},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    assert line.startswith("serving index at http://127.0.0.1:") and KEY not in line
    body = json.dumps({"queries": ["owl"], "top": 1}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    request = urllib.request.Request(f"{line.split()[3]}/search", body, headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert json.load(answer)["results"][0][0]["title"] == "Owl"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0 and err == b"" and KEY.encode() not in out
