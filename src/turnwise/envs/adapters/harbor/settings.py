"""The settings of task.toml that turnwise reads, and the reasons why it cannot run a task."""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from turnwise.core.task import Split
from turnwise.envs.adapters.harbor.types import Unsupported

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
User = str | int | None


class AgentSettings(BaseModel):
    timeout_sec: Seconds | None = None
    """Time for the commands of an episode; None: no limit but that of turns."""
    user: User = None


class VerifierSettings(BaseModel):
    timeout_sec: Seconds = 600.0
    env: dict[str, str] = {}
    user: User = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: dict[str, Any] | None = None
    collect: list[Any] = []


class EnvironmentSettings(BaseModel):
    docker_image: str | None = None
    os: str = "linux"
    build_timeout_sec: Seconds = 600.0
    gpus: int | None = None
    tpu: Any = None
    mcp_servers: list[Any] = []
    healthcheck: Any = None
    env: dict[str, str] = {}
    workdir: str | None = None
    network_mode: str = "public"


class SolutionSettings(BaseModel):
    env: dict[str, str] = {}


class TaskSettings(BaseModel):
    """task.toml. Sections and settings that have no effect on an episode, such as authors, are not read."""

    schema_version: str = "1.4"
    metadata: dict[str, Any] = {}
    agent: AgentSettings = AgentSettings()
    verifier: VerifierSettings = VerifierSettings()
    environment: EnvironmentSettings = EnvironmentSettings()
    solution: SolutionSettings = SolutionSettings()
    steps: list[Any] | None = None

    @property
    def split(self) -> Split | None:
        """The split that [metadata] names."""
        name = self.metadata.get("split")
        if name in (None, "train", "validation", "test"):
            return name
        raise Unsupported("task.toml: metadata.split", f"{name!r} is not train, validation or test")


def read_settings(path: Path) -> TaskSettings:
    """Read task.toml. Raises Unsupported, in one line, also if it is not valid."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        data.setdefault("schema_version", str(data.pop("version", "1.4")))
        settings = TaskSettings.model_validate(data)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Unsupported("task.toml", f"it is not valid TOML ({error})") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise Unsupported(f"task.toml: {'.'.join(map(str, first['loc']))}", first["msg"]) from error
    _check(settings)
    return settings


def _check(settings: TaskSettings) -> None:
    """Raise Unsupported for settings that the sandbox cannot honour."""
    environment, verifier = settings.environment, settings.verifier
    refused = {
        "steps": (settings.steps, "tasks of several steps are not supported"),
        "environment.os": (environment.os.lower() != "linux", "only linux is supported"),
        "environment.gpus": (environment.gpus, "the sandbox has no GPUs"),
        "environment.tpu": (environment.tpu, "the sandbox has no TPUs"),
        "environment.mcp_servers": (environment.mcp_servers, "servers are not supported"),
        "environment.healthcheck": (environment.healthcheck, "services are not supported"),
        "agent.user": (settings.agent.user not in (None, "root", 0), "the sandbox has one user"),
        "verifier.user": (verifier.user not in (None, "root", 0), "the sandbox has one user"),
        "verifier.environment_mode": (verifier.environment_mode == "separate", "only shared is supported"),
        "verifier.environment": (verifier.environment is not None, "only the task's environment is supported"),
        "verifier.collect": (verifier.collect, "services are not supported"),
    }
    for name, (is_set, reason) in refused.items():
        if is_set:
            raise Unsupported(f"task.toml: {name}", reason)
    if settings.schema_version.partition(".")[0] != "1":
        raise Unsupported("task.toml: schema_version", f"{settings.schema_version} is not a version 1")
    variables = {"environment": environment.env, "verifier": verifier.env, "solution": settings.solution.env}
    for section, env in variables.items():
        for name, value in env.items():
            if "${" in value:
                raise Unsupported(
                    f"task.toml: {section}.env.{name}", "variables of this machine are not given to tasks"
                )
