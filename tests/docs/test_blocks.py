"""Every Python block and every command of README and docs runs, with short settings."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import turnwise as tw
from blocks_for_tests import (
    EARLY_MINUTES,
    PLACEHOLDER_FOLDERS,
    PageRunner,
    make_runs_short,
    patch_servers,
    split_commands,
)
from endpoint_for_tests import Server, completion, serving
from pages_for_tests import ROOT, blocks_of, page_name
from turnwise.cli.main import main

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "skills").rglob("*.md"))]
COMMANDS = ("turnwise ", "python ", "pip ", "make ", "pytest ")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that gives a run folder by its kind; each is made once."""
    folder = tmp_path_factory.mktemp("runs")

    def make(kind: str) -> Path:
        settings: dict[str, Any] = {"name": kind, "record__folder": str(folder), "quiet": True}
        if (folder / kind).exists():
            pass
        elif kind == "finished":
            tw.train("frozen_lake", **settings)
        elif kind == "stopped":
            tw.train("frozen_lake", train__max_minutes=EARLY_MINUTES / 2, **settings)
        elif kind == "adapter":
            tw.train("frozen_lake", lora__rank=2, **settings)
        else:
            tw.evaluate(str(make("finished")), out=folder / kind, quiet=True)
        return folder / kind

    return make


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with serving(Server(answer=lambda request: completion("<answer>up</answer>"))) as url:
        yield url


@pytest.fixture
def make_runner(
    tmp_path: Path, runs: Callable[[str], Path], endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], PageRunner]:
    def copy_placeholder(word: str, command: Sequence[str]) -> None:
        resumes = "--resume" in command
        if word in PLACEHOLDER_FOLDERS and not resumes and command[0] != "search":
            shutil.rmtree(tmp_path / word, ignore_errors=True)
        elif word == "INDEX" and not Path(word).exists():
            assert main(["index", "notes.md", "--to", word]) == 0
        elif word == "tasks.jsonl" and not Path(word).exists():
            rows = ({"question": f"{number} + 1?", "answer": str(number + 1)} for number in range(40))
            Path(word).write_text("".join(json.dumps(row) + "\n" for row in rows))
            Path("reward.py").write_text('def score(answer, row):\n    return answer == row["answer"]\n')
        elif word in ("RUN", "runs/NAME", "ADAPTER", "FOLDER", "runs/eval-NAME"):
            kind = "adapter" if command[0] == "merge" else "stopped" if resumes else "finished"
            kind = "evaluation" if word == "runs/eval-NAME" or (command[0] == "eval" and resumes) else kind
            shutil.rmtree(tmp_path / word, ignore_errors=True)
            shutil.copytree(runs(kind), tmp_path / word)

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("OPENAI_BASE_URL", endpoint)
    monkeypatch.setenv("OPENAI_API_KEY", "a key")
    patch_servers(monkeypatch)
    make_runs_short(monkeypatch)
    return lambda: PageRunner(
        folder=tmp_path, endpoint=endpoint, copy_placeholder=copy_placeholder, monkeypatch=monkeypatch
    )


def earlier_pages(page: Path) -> list[Path]:
    """Return the tutorials before this one: a reader has their files."""
    numbered = sorted(page.parent.glob("[0-9]-*.md"))
    return numbered[: numbered.index(page)] if page in numbered else []


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_blocks_of_a_page_run(page: Path, make_runner: Callable[[], PageRunner]) -> None:
    runner = make_runner()
    for earlier in earlier_pages(page):
        runner.write_files(blocks_of(earlier))
    runner.write_files(blocks_of(page))
    for block in blocks_of(page):
        try:
            runner.run(block)
        except (Exception, SystemExit) as error:
            raise AssertionError(f"{block.source}: {error}") from error
    print(f"{len(runner.not_run)} not run", *runner.not_run, sep="\n")  # noqa: T201


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_commands_are_in_bash_blocks(page: Path) -> None:
    """A command in a block without a language would not be run."""
    others = [block for block in blocks_of(page) if block.language != "bash"]
    found = [(block.source, line) for block in others for line in block.text.splitlines() if line.startswith(COMMANDS)]
    assert found == []


def test_blocks_are_found_in_the_documentation() -> None:
    languages = Counter(block.language for page in PAGES for block in blocks_of(page))
    assert languages["python"] > 10 and languages["bash"] > 40
    ours = [page for page in PAGES if page.parent.name != "migration"]
    assert sum(block.not_run is not None for page in ours for block in blocks_of(page)) < 30


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("```bash\nturnwise train bandit --train.stepz 3\n```", "unknown key train.stepz"),
        ("```bash\nturnwise eval runs/missing\n```", "missing"),
        ("```bash\nturnwize train bandit\n```", "cannot run it"),
        ("```bash\npip install 'turnwise[loora]'\n```", "loora"),
        ("```bash\nmake demoo\n```", "demoo"),
        ("```bash\npython missing.py\n```", "missing.py"),
        ("```bash\npython benchmarks/sandbox.py --no-such-option\n```", "2"),
        ('```python\nimport turnwise as tw\ntw.train("bandit", train__stepz=3)\n```', "unknown key train.stepz"),
        ("```python\nx = 1\n```\n\n```python\nassert x == 2, x\n```", "1"),
        ("```python\n# helper.py\nx = 1\n```\n\n```python\nprint(x)\n```", "'x' is not defined"),
        ("```toml\nsteps =\n```", "Invalid value"),
    ],
)
def test_broken_block_fails(text: str, error: str, tmp_path: Path, make_runner: Callable[[], PageRunner]) -> None:
    (tmp_path / "page.md").write_text(f"# A page\n\n{text}\n")
    with pytest.raises(AssertionError, match=error):
        test_blocks_of_a_page_run(tmp_path / "page.md", make_runner)


def test_block_with_a_reason_is_not_run(tmp_path: Path, make_runner: Callable[[], PageRunner]) -> None:
    (tmp_path / "page.md").write_text("<!-- not run: needs a GPU -->\n```python\nraise ValueError\n```\n")
    runner = make_runner()
    for block in blocks_of(tmp_path / "page.md"):
        runner.run(block)
    assert runner.not_run == ["page.md:3: needs a GPU"]


def test_commands_continue_after_a_backslash() -> None:
    assert split_commands("# first\nturnwise eval RUN \\\n    --tries 2\n\nturnwise view  # all runs\n") == [
        "turnwise eval RUN      --tries 2",
        "turnwise view  # all runs",
    ]
