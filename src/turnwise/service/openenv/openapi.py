"""A short description of the HTTP routes, which tells clients the version and the mode of the protocol."""

from typing import Any

VERSION = "1.0.0"
"""Version of OpenEnv's HTTP interface."""
GET = {
    "/health": "Whether the server runs.",
    "/metadata": "Name and description of the environment.",
    "/schema": "JSON schemas of actions, observations and states.",
    "/state": "State of a new environment.",
    "/list_environments": "Names of the environments.",
    "/{env}/splits": "Splits of the tasks.",
}
POST = {
    "/reset": "First observation of a task, in an environment of its own.",
    "/step": "One action in the first training task, in an environment of its own.",
    "/mcp": "Tools, as JSON-RPC.",
    "/{env}/tasks": "Tasks of a split.",
    "/{env}/num_tasks": "Number of tasks of a split.",
    "/{env}/task": "One task.",
    "/{env}/task_range": "Tasks from start to stop.",
}


def describe_api(name: str, version: str) -> dict[str, Any]:
    """Return the OpenAPI description."""
    paths: dict[str, Any] = {}
    for method, routes in (("get", GET), ("post", POST)):
        for path, summary in routes.items():
            paths[path] = {method: {"summary": summary, "responses": {"200": {"description": "The answer, as JSON."}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": name, "version": VERSION, "description": f"Served by turnwise {version}."},
        "paths": paths,
    }
