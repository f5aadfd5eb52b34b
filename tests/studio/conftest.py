"""A page of the studio in a browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from studio_for_tests import TOKEN, StudioPage, open_studio_app

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
