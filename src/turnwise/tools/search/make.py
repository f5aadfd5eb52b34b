"""The tool `search` from a recipe's options: { use = "search", index = "FOLDER" }, or a url in the index's place."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from turnwise.config.keys import read_options
from turnwise.config.secrets import name_of_variable
from turnwise.core.errors import UserError
from turnwise.tools.search.hits import Searcher
from turnwise.tools.search.limits import MOST_HITS
from turnwise.tools.search.manifest import Mode
from turnwise.tools.search.tool import NAME, TOP, SearchTool
from turnwise.tools.tool import Tool


class SearchOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")] = NAME
    """How the model calls it: two indexes are two tools by two names."""
    index: str | None = None
    """A folder that `turnwise index` wrote."""
    url: str | None = None
    """A server of `turnwise search INDEX --serve`, in place of a folder."""
    mode: Mode | None = None
    """How passages are ranked; left out: hybrid where the index has vectors, else lexical. A server has its own."""
    top: Annotated[int | None, Field(ge=1, le=MOST_HITS)] = None
    """Passages of every search; left out: the model may say how many, and gets three if it does not."""
    key_env: Annotated[str, AfterValidator(name_of_variable)] | None = None
    """The variable of the environment that holds the server's key; left out: TURNWISE_SEARCH_KEY, where it is set."""


def make_search(options: Mapping[str, Any]) -> Tool:
    """Opens the index, or finds the server; what is wrong with the options is one line."""
    given = read_options(SearchOptions, options, "the tool search")
    top, chooses = given.top or TOP, given.top is None
    return SearchTool(_searcher(given), top=top, chooses_top=chooses, name=given.name)


def _searcher(given: SearchOptions) -> Searcher:
    from turnwise.tools.search.opening import open_folder, open_url

    if given.index is not None and given.url is not None:
        raise UserError("the tool search takes an index or a url, not both: leave one of them out")
    if given.index is None and given.url is None:
        raise UserError('the tool search needs an index or a url: { use = "search", index = "FOLDER" }')
    if given.index is not None:
        if given.key_env is not None:
            raise UserError("the tool search: key_env is for a url; leave it out beside an index")
        return open_folder(Path(given.index).expanduser(), given.mode)
    if given.mode is not None:
        raise UserError("the tool search: the server at a url has its own mode; leave mode out, or start it so")
    return open_url(given.url or "", given.key_env)
