"""A kind of environment: its class, with parameters checked and random streams addressed."""

import ast
import difflib
import inspect
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from turnwise.core.errors import UserError
from turnwise.core.random_streams import address, random_stream
from turnwise.core.task import Split, Task
from turnwise.envs.catalogue import install_command
from turnwise.envs.runner import TextEnvRunner
from turnwise.envs.seeds import FIRST_SEED, split_of_seed
from turnwise.envs.text_env import PROMPT_PARAMS, TextEnv, env_docstring, params_model

if TYPE_CHECKING:
    from turnwise.rewards.services import RewardServices


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvParameter:
    """One thing that `env.params` may set."""

    name: str
    type: str
    default: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    name: str
    """The tag of its tasks and records. It addresses chance, so it holds no path of this machine."""
    id: str
    """What `registry.load` takes: a built-in name or FILE.py:Class; empty if the class stands in no file."""
    cls: type[TextEnv]
    services: "RewardServices | None" = field(default=None, repr=False, compare=False)
    """Judges that rubrics of the run share. None: each episode has its own."""

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        return env_docstring(self.cls).partition("\n")[0]

    @property
    def install_command(self) -> str | None:
        """The line that installs what is missing; None if nothing is."""
        return install_command(self.cls.needs)

    @property
    def required_params(self) -> tuple[str, ...]:
        """Parameters that have no default: it cannot be made without them."""
        fields = params_model(self.cls).model_fields
        return tuple(name for name, field in fields.items() if field.is_required())

    def parameters(self) -> tuple[EnvParameter, ...]:
        """All parameters, for a list that a person reads."""
        meanings = _meanings(params_model(self.cls))
        return tuple(
            EnvParameter(
                name=name,
                type=inspect.formatannotation(field.annotation).removeprefix("typing."),
                default=_default(field),
                description=field.description or meanings.get(name, ""),
            )
            for name, field in params_model(self.cls).model_fields.items()
        )

    def check_params(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters with defaults filled in, as plain JSON values."""
        settings = params_model(self.cls)
        try:
            return settings.model_validate(dict(params)).model_dump(mode="json")
        except ValidationError as error:
            raise UserError(self._complaint(error, settings)) from error

    def check_resources(self, params: Mapping[str, Any]) -> None:
        """What the parameters name must be there."""
        self.cls.check(params_model(self.cls).model_validate(dict(params)))

    def split_sizes(self, params: Mapping[str, Any]) -> dict[Split, int]:
        """Of the splits whose tasks are counted."""
        checked = params_model(self.cls).model_validate(dict(params))
        found: dict[Split, int | None] = {split: self.cls.size(checked, split) for split in FIRST_SEED}
        return {split: size for split, size in found.items() if size is not None}

    def make(self, task: Task, member: int = 0, attempt: int = 0) -> TextEnvRunner:
        """One episode's world. Members of a group share the start state and meet luck of their own."""
        if self.install_command:
            raise UserError(f"{self.name} needs a package that is not installed: {self.install_command}")
        if task.env != self.name:
            raise UserError(f"the task is one of {task.env!r}, not of {self.name!r}: give it env={self.name!r}")
        if (split := split_of_seed(task.seed)) != task.split:
            raise UserError(f"seed {task.seed} is of the {split} split, not {task.split}: take it from seed_for")
        full = replace(task, params=self.check_params(task.params))
        # How a prompt is worded changes nothing about the world.
        world = replace(full, params={name: value for name, value in full.params.items() if name not in PROMPT_PARAMS})
        env = self.cls(full.params, rng=random_stream("luck", *world.parts, member, attempt))
        env.split, env.index = full.split, full.seed - FIRST_SEED[full.split]
        env.services = self.services
        start_rng = random_stream("start", *world.parts)
        runner = env.runner or TextEnvRunner
        return runner(env, start_rng, address("tools", *world.parts, member, attempt))

    def _complaint(self, error: ValidationError, settings: type[BaseModel]) -> str:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            near = difflib.get_close_matches(name, settings.model_fields, n=1, cutoff=0.5)
            mend = f"did you mean {near[0]}?" if near else f"choose from {', '.join(settings.model_fields)}"
            return f"env.params.{name}: {self.name} has no such parameter; {mend}"
        if first["type"] == "missing":
            return f"env.params.{name} is missing: {self.name} needs {', '.join(self.required_params)}"
        where = f"env.params.{name}" if name else "env.params"
        return f"{where}: {first['msg'].removeprefix('Value error, ')} (got {first['input']!r})"


def _meanings(settings: type[BaseModel]) -> dict[str, str]:
    """The docstrings under the parameters, read when somebody asks: pydantic would read all sources at every start."""
    found: dict[str, str] = {}
    for cls in reversed(settings.__mro__):
        with suppress(OSError, TypeError, SyntaxError):  # made in a program, or without its source
            body = ast.parse(inspect.cleandoc("\n" + inspect.getsource(cls))).body[0]
            if isinstance(body, ast.ClassDef):
                found |= _docstrings(body)
    return found


def _docstrings(body: ast.ClassDef) -> dict[str, str]:
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(body.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "must be given"
    return "depends on others" if field.default_factory else repr(field.get_default())


def validate_env_class(cls: Any) -> type[TextEnv]:
    """`cls` if it is an environment that can be made."""
    name = getattr(cls, "__name__", repr(cls))
    if not (isinstance(cls, type) and issubclass(cls, TextEnv) and cls is not TextEnv):
        raise UserError(f"{name} is no environment: make it a subclass of TextEnv")
    if cls.__abstractmethods__:
        raise UserError(f"{name} lacks {' and '.join(sorted(cls.__abstractmethods__))}: define it")
    return cls
