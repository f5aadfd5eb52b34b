"""Start the server of an OpenEnv package."""

from pathlib import Path

from turnwise.core.errors import UserError
from turnwise.envs.adapters.server_process import ServerCommand, python_of, running_server
from turnwise.envs.param_setting import param_setting

SERVER_MODULE = "server.app"
"""Module of the application in a package, as OpenEnv's template has it."""
PROGRAM = """
import sys
import uvicorn
uvicorn.run(sys.argv[1], host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
"""


def locate(package: str) -> tuple[str | None, str]:
    """Return the folder to start in and uvicorn's name of the application, of a folder or a module."""
    folder = Path(package)
    if (folder / "openenv.yaml").is_file():
        return str(folder.absolute()), f"{SERVER_MODULE}:app"
    if folder.is_dir():
        raise UserError(f"{package} has no openenv.yaml: name the folder of an OpenEnv environment, or its module.")
    if not all(part.isidentifier() for part in package.split(".")):
        raise UserError(
            f"{param_setting('server')} {package!r} is neither a URL (http://localhost:8000), a folder with an "
            "openenv.yaml, nor the name of a Python module."
        )
    return None, f"{package}.{SERVER_MODULE}:app"


def package_url(package: str, python: str | None) -> str:
    """Return the URL of the package's server, which is started if it does not run."""
    folder, application = locate(package)
    arguments = (python_of(package, python), "-c", PROGRAM, application)
    return running_server(ServerCommand(name=package, arguments=arguments, folder=folder)).url
