"""Load environments: by name, from a file as FILE.py:Class, or as the class that a program passed."""

from importlib import import_module
from pathlib import Path

from turnwise.core.errors import UserError
from turnwise.envs.catalogue import CATALOGUE
from turnwise.envs.protocol_env import EnvFactory
from turnwise.envs.spec import EnvSpec, validate_env_class
from turnwise.envs.text_env import TextEnv
from turnwise.text.suggestions import closest_match
from turnwise.user_code.references import find_object, import_file, reference_to

ENVIRONMENTS: dict[str, str] = {name: entry.entry_point for name, entry in CATALOGUE.items()}
"""Name -> module:Class of the built-in environments."""


def load_spec(env_id: str) -> EnvSpec:
    """Load the spec of a built-in environment, or of FILE.py:Class."""
    if env_id in ENVIRONMENTS:
        module, _, class_name = ENVIRONMENTS[env_id].partition(":")
        return EnvSpec(name=env_id, id=env_id, cls=validate_env_class(getattr(import_module(module), class_name)))
    if (passed := find_object(env_id)) is not None:
        return EnvSpec(name=passed.__name__, id=env_id, cls=validate_env_class(passed))
    file, _, class_name = env_id.rpartition(":")
    if file.endswith(".py"):
        return _load_from_file(env_id, Path(file), class_name)
    if env_id.endswith(".py"):
        raise UserError(f"{env_id} names no class: write {env_id}:Class.")
    near = closest_match(env_id, ENVIRONMENTS)
    fix = f'did you mean "{near}"?' if near else "choose one that `turnwise envs` lists, or FILE.py:Class"
    raise UserError(f'Unknown environment "{env_id}": {fix}')


def spec_of(cls: type[TextEnv] | EnvFactory) -> EnvSpec:
    """Return the spec of a class or factory, as in `tw.train(env=GuessNumber)`."""
    validate_env_class(cls)
    for name, entry_point in ENVIRONMENTS.items():
        if entry_point == f"{cls.__module__}:{cls.__qualname__}":
            return EnvSpec(name=name, id=name, cls=cls)
    return EnvSpec(name=cls.__name__, id=reference_to(cls), cls=cls)


def _load_from_file(env_id: str, file: Path, class_name: str) -> EnvSpec:
    module = import_file(file)
    if not hasattr(module, class_name):
        near = closest_match(class_name, vars(module))
        fix = f'did you mean "{near}"?' if near else "check the name after the colon"
        raise UserError(f'No class "{class_name}" in {file}: {fix}')
    return EnvSpec(name=class_name, id=env_id, cls=validate_env_class(getattr(module, class_name)))
