"""EnvSpec: an environment class under a name; validates parameters and makes episodes from tasks."""

import ast
import inspect
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from turnwise.core.errors import UserError
from turnwise.core.random_streams import address, random_stream
from turnwise.core.task import Split, Task
from turnwise.envs.catalogue import install_command
from turnwise.envs.class_checks import check_text_env
from turnwise.envs.param_setting import PARAMS_SETTING, param_setting, params_in
from turnwise.envs.protocol_env import EnvFactory, ProtocolEnvRunner, check_factory, factory_params
from turnwise.envs.reasoning import ReasoningFormat
from turnwise.envs.runner import TextEnvRunner
from turnwise.envs.seeds import FIRST_SEED, split_of_seed
from turnwise.envs.text_env import TextEnv, env_docstring, params_model, reasoning_format
from turnwise.settings.section import quoted_numbers, truth_values_as_numbers
from turnwise.settings.values import parse_free
from turnwise.text.suggestions import closest_match

if TYPE_CHECKING:
    from turnwise.rewards.services import RewardServices
    from turnwise.tools.tool import NeedsServer

EnvRunner = TextEnvRunner | ProtocolEnvRunner
"""One episode of an environment. `env` is the environment as its author wrote it."""
EnvClass = TypeVar("EnvClass", bound=type)
PARSING = Lock()
"""Python 3.11 raises SystemError if two threads parse source at the same time, as requests of the studio do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvParameter:
    """One parameter of `env.params`, for lists."""

    name: str
    type: str
    default: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    """An environment that can be made: its class or factory, with a name and an id."""

    name: str
    """Name in tasks and records. It seeds random streams, so it contains no path of this machine."""
    id: str
    """Argument of `registry.load_spec`: a built-in name, FILE.py:Class, or python:Class (a class in no file)."""
    cls: type[TextEnv] | EnvFactory
    params_setting: str = field(default=PARAMS_SETTING, compare=False)
    """Setting in which the user set the parameters, for errors."""
    services: "RewardServices | None" = field(default=None, repr=False, compare=False)
    """Judges that rubrics of the run share. None: each episode has its own."""

    @property
    def summary(self) -> str:
        """First line of the docstring."""
        text = (inspect.getdoc(self.cls) or "") if self.text_env is None else env_docstring(self.text_env)
        return text.partition("\n")[0]

    @property
    def install_command(self) -> str | None:
        """Command that installs missing packages; None if none is missing."""
        return None if self.text_env is None else install_command(self.text_env.needs)

    @property
    def params_model(self) -> type[BaseModel]:
        """Model of `env.params`."""
        return factory_params(self.cls) if self.text_env is None else params_model(self.text_env)

    @property
    def text_env(self) -> type[TextEnv] | None:
        """The class, if it is a TextEnv; None if it makes environments that follow the protocol themselves."""
        return self.cls if isinstance(self.cls, type) and issubclass(self.cls, TextEnv) else None

    def subclass_of(self, base: EnvClass) -> EnvClass | None:
        """Return the class if it is a subclass of `base`; None for another class or a factory."""
        return cast(EnvClass, self.cls) if isinstance(self.cls, type) and issubclass(self.cls, base) else None

    @property
    def required_params(self) -> tuple[str, ...]:
        """Parameters without a default."""
        fields = self.params_model.model_fields
        return tuple(name for name, field in fields.items() if field.is_required())

    def parameters(self) -> tuple[EnvParameter, ...]:
        """Return all parameters with their types, defaults and descriptions."""
        docstrings = _param_docstrings(self.params_model)
        return tuple(
            EnvParameter(
                name=name,
                type=inspect.formatannotation(field.annotation).removeprefix("typing."),
                default=_default(field),
                description=field.description or docstrings.get(name, ""),
            )
            for name, field in self.params_model.model_fields.items()
        )

    def check_params(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Validate parameters and fill in defaults; return JSON values."""
        settings = self.params_model
        try:
            validated = settings.model_validate(dict(params)).model_dump(mode="json")
        except ValidationError as error:
            raise UserError(self._describe_error(error, settings, params)) from error
        for name, value in truth_values_as_numbers(params, validated):
            raise UserError(f"{param_setting(name)} = {str(value).lower()}: give a number.")
        for name, text in quoted_numbers(params, validated):
            if not isinstance(parse_free(text), str):  # else it may come from the command line, as in slippery=True
                raise UserError(f"{param_setting(name)} is a text in quotes: give the value without quotes.")
        return self._without_view_defaults(validated)

    def _without_view_defaults(self, params: dict[str, Any]) -> dict[str, Any]:
        """Omit view parameters at their defaults: an episode's randomness depends on its task."""
        hidden = () if self.text_env is None else self.text_env.view_params
        fields = self.params_model.model_fields
        return {
            name: value for name, value in params.items() if name not in hidden or value != fields[name].get_default()
        }

    def check_resources(self, params: Mapping[str, Any]) -> None:
        """Check what the parameters refer to, such as files. Raises UserError."""
        if (text_env := self.text_env) is not None:
            validated = self.params_model.model_validate(dict(params))
            text_env.check(validated)
            text_env.state_judge(validated)

    def judges(self, params: Mapping[str, Any], services: "RewardServices | None" = None) -> "list[NeedsServer]":
        """Build the judges that score the environment's episodes. Raises UserError."""
        if (text_env := self.text_env) is None:
            return []
        return text_env.judges(self.params_model.model_validate(dict(params)), services)

    def shows_images(self, params: Mapping[str, Any]) -> bool:
        """Return whether observations contain images, as far as that is known before an episode."""
        return self.text_env is not None and self.text_env.shows_images(self.params_model.model_validate(dict(params)))

    def image_params(self, pixels: int) -> dict[str, Any]:
        """Return parameters of the size of images that suit a model whose image tokens show `pixels` x `pixels`."""
        return {} if self.text_env is None else self.text_env.image_params(pixels)

    @property
    def fully_observable(self) -> bool:
        """Whether each observation shows all that matters."""
        return self.text_env is not None and self.text_env.fully_observable

    def reasoning_format(self, params: Mapping[str, Any]) -> ReasoningFormat:
        """Return the format of replies that `env.params.reasoning` sets; free without that parameter."""
        if (text_env := self.text_env) is None:
            return "free"
        return reasoning_format(text_env, self.params_model.model_validate(dict(params)))

    def split_sizes(self, params: Mapping[str, Any]) -> dict[Split, int]:
        """Return the number of tasks of each split that has a fixed number."""
        if (text_env := self.text_env) is None:
            return {}
        validated = self.params_model.model_validate(dict(params))
        sizes: dict[Split, int | None] = {split: text_env.size(validated, split) for split in FIRST_SEED}
        return {split: size for split, size in sizes.items() if size is not None}

    def roles(self, params: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the roles that are trained, each in episodes of its own; none for an environment of one agent."""
        if (text_env := self.text_env) is None:
            return ()
        return text_env.episode_roles(self.params_model.model_validate(dict(params)))

    def make(self, task: Task, member: int = 0, attempt: int = 0) -> EnvRunner:
        """Make one episode. Members of a group share the start state; later randomness is their own."""
        if self.install_command:
            raise UserError(f"{self.name} needs a package that is not installed: {self.install_command}")
        if task.env != self.name:
            raise UserError(f"The task belongs to {task.env!r}, not to {self.name!r}: create it with env={self.name!r}")
        if (split := split_of_seed(task.seed)) != task.split:
            raise UserError(f"Seed {task.seed} belongs to the {split} split, not {task.split}: use seed_for.")
        with params_in(self.params_setting):
            return self._make(replace(task, params=self.check_params(task.params)), member, attempt)

    def _make(self, full: Task, member: int, attempt: int) -> EnvRunner:
        text_env = self.text_env
        # Random streams do not depend on how a task is shown.
        key = replace(full, params=(text_env or TextEnv).stream_params(full.params))
        rng = random_stream("luck", *key.parts, member, attempt)
        if text_env is None:
            factory: Any = self.cls
            return ProtocolEnvRunner(self.name, factory(full, rng), rng)
        env = text_env(full.params, rng=rng)
        if not hasattr(env, "params"):
            raise UserError(f"{text_env.__name__}.__init__ does not call super().__init__(params, rng): add the call.")
        env.split, env.index = full.split, full.seed - FIRST_SEED[full.split]
        env.services = self.services
        start_rng = random_stream("start", *key.parts)
        runner: TextEnvRunner = (env.runner or TextEnvRunner)(
            env, start_rng, address("tools", *key.parts, member, attempt)
        )
        runner.params_setting = self.params_setting
        return runner

    def _describe_error(self, error: ValidationError, settings: type[BaseModel], params: Mapping[str, Any]) -> str:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            near = closest_match(name, settings.model_fields)
            fix = f'did you mean "{near}"?' if near else f"choose from {', '.join(settings.model_fields)}"
            return f"{param_setting(name)}: {self.name} has no such parameter: {fix}"
        if first["type"] == "missing":
            return f"{param_setting(name)} is missing: {self.name} needs {', '.join(self.required_params)}"
        problem = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
        if not name:  # of several parameters together, which the problem names
            return f"{param_setting()}: {problem}"
        return f"{self._setting(name, params)} = {first['input']!r}: {problem}"

    def _setting(self, name: str, params: Mapping[str, Any]) -> str:
        """Return where the value of a parameter was set: in the settings, or in the class as its default."""
        top = name.partition(".")[0]
        if top in params or self.text_env is None:
            return param_setting(name)
        nested = "Params." if top in self.text_env.Params.model_fields else ""
        return f"{self.text_env.__name__}.{nested}{name}"


def _param_docstrings(settings: type[BaseModel]) -> dict[str, str]:
    """Read the docstrings under the parameters from the source, only on request: pydantic would at every start."""
    docstrings: dict[str, str] = {}
    for cls in reversed(settings.__mro__):
        with PARSING, suppress(OSError, TypeError, SyntaxError):  # created at run time, or without its source
            body = ast.parse(inspect.cleandoc("\n" + inspect.getsource(cls))).body[0]
            if isinstance(body, ast.ClassDef):
                docstrings |= _field_docstrings(body)
    return docstrings


def _field_docstrings(body: ast.ClassDef) -> dict[str, str]:
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(body.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    return "depends on others" if field.default_factory else repr(field.get_default())


def validate_env_class(cls: Any) -> type[TextEnv] | EnvFactory:
    """Return `cls` if it is a concrete TextEnv, or makes environments that follow the `Env` protocol."""
    if isinstance(cls, TextEnv):
        made = type(cls).__name__
        raise UserError(f"An object of the class {made} is not an environment class: give {made} itself, not {made}().")
    name = getattr(cls, "__name__", repr(cls))
    if cls is TextEnv or not callable(cls):
        raise UserError(f"{name} is not an environment: make it a subclass of TextEnv.")
    if not (isinstance(cls, type) and issubclass(cls, TextEnv)):
        check_factory(cls)
    elif cls.__abstractmethods__:
        raise UserError(f"{name} lacks {' and '.join(sorted(cls.__abstractmethods__))}: define it.")
    else:
        check_text_env(cls)
    return cls
