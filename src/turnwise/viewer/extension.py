"""Parts that another package adds to the viewer: views of the page and routes of the server."""

from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI, Response
from fastapi.staticfiles import StaticFiles
from starlette.types import ASGIApp


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """The viewer has no route that writes; an extension may have some, behind the viewer's token."""

    name: str
    """Its files are below /NAME/ and its routes below /api/NAME/."""
    static: Path
    """Folder of the page's files. The page loads NAME.js, whose exports `static/plugins.js` lists."""
    routes: ASGIApp


def add_extension(app: FastAPI, extension: Extension | None) -> None:
    """Add the module that the page loads extensions from, and the routes and files of the extension, if there is one.

    Called before the viewer's own files are mounted: the module is below their path.
    """
    module = "export const EXTENSIONS = [];\n"
    if extension is not None:
        name = extension.name
        module = f'import * as {name} from "/{name}/{name}.js";\nexport const EXTENSIONS = [{name}];\n'
        app.mount(f"/api/{name}", extension.routes)
        app.mount(f"/{name}", StaticFiles(directory=extension.static))

    @app.get("/static/extensions.js")
    def extensions() -> Response:
        return Response(module, media_type="text/javascript")
