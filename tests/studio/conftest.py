"""A page of the studio in a browser."""

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from studio_for_tests import ECHO, TOKEN, Page, StudioPage, open_studio, open_studio_app

from browser_fixtures_for_tests import ConnectedBrowser
from opened_page_for_tests import serving_app


@pytest.fixture
def opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connected_browser: ConnectedBrowser
) -> Iterator[StudioPage]:
    """The studio over an empty folder `runs` in the working directory. Its jobs print their arguments.

    The page must log no error and fetch nothing from other servers.
    """
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    with (
        open_studio_app(Path("runs")) as (queue, make),
        serving_app(make) as address,
        connected_browser.in_use() as browser,
    ):
        context = browser.new_context()
        try:
            with StudioPage(context.new_page(), address, queue) as page:
                page.page.goto(f"{address}?token={TOKEN}")
                yield page
            assert not page.problems
            assert all(url.startswith((address, "data:", "blob:")) for url in page.requests)
        finally:
            context.close()


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    """A client of the studio over an empty folder `runs` in the working directory. Its jobs print their arguments."""
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    with open_studio(Path("runs"), ECHO) as opened:
        yield opened


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step with a checkpoint, whose model has learned nothing. Copy it before use."""
    from runs_for_tests import small
    from turnwise.run.train import train

    folder = tmp_path_factory.mktemp("trained")
    settings = {"env__kind": "frozen_lake", "model__warmup_steps": 0, "train__steps": 1, "eval__episodes": 1}
    train(small(folder, **settings), console=Console(file=io.StringIO()))
    return folder / "run"
