"""Check that the model, the judges and the engine of a run read images, if an environment shows them."""

from pathlib import Path

from turnwise.core.errors import UserError
from turnwise.engine.engines import ENGINES
from turnwise.engine.settings import EngineSettings
from turnwise.envs.spec import EnvSpec
from turnwise.models.loading.catalogue import TINY_VLM, model_names
from turnwise.models.loading.load import LoadedModel
from turnwise.models.loading.model_files import is_adapter
from turnwise.models.loading.pretrained import reads_images
from turnwise.models.memory.shapes import load_config
from turnwise.models.settings import ModelConfig
from turnwise.rewards.judge.settings import LOCAL
from turnwise.run.environment_mix import EnvironmentMix
from turnwise.run.find_model import resolve_model_name


def check_sees_images(loaded: LoadedModel, environments: EnvironmentMix) -> None:
    """Raise UserError if an environment shows images to a model that reads text only, before any work is done."""
    if loaded.images is None and (spec := environments.visual_spec) is not None:
        raise _text_only_error(loaded.name, spec)


def check_model_reads_images(model: ModelConfig, environments: EnvironmentMix) -> None:
    """Raise UserError if an environment shows images to a model or local judge that reads text only.

    Reads their configurations, not their weights.
    """
    spec = environments.visual_spec
    if spec is not None and _is_text_only(resolve_model_name(model.name)):
        raise _text_only_error(model.name, spec)
    for spec, params in environments.with_params:
        judge = params.get("state_judge") or {}
        if spec.shows_images(params) and judge.get("endpoint") == LOCAL and _is_text_only(judge["model"]):
            raise UserError(
                f"{spec.name} shows images, and the judge {judge['model']} reads text only. Choose a vision-language "
                f"model in {spec.params_setting}.state_judge."
            )


def _is_text_only(name: str) -> bool:
    path = Path(name).expanduser()
    if path.suffix.lower() == ".gguf":  # a vision tower would be in another file
        return True
    if path.is_dir() and name not in model_names() and not is_adapter(path) and not (path / "config.json").is_file():
        return False  # not a model; loading it reports what is wrong
    return not reads_images(load_config(name))


def _text_only_error(model: str, spec: EnvSpec) -> UserError:
    return UserError(
        f"{spec.name} shows images, and the model {model} reads text only. Choose a vision-language model, such as "
        f"--model.name {TINY_VLM}{_or_text(spec)}."
    )


def check_engine_reads_images(engine: EngineSettings, environments: EnvironmentMix) -> None:
    """Raise UserError if an environment shows images and the engine reads text only."""
    spec = environments.visual_spec
    if spec is not None and not engine.reads_images:
        kinds = " or ".join(name for name, chosen in ENGINES.items() if chosen().reads_images)
        raise UserError(
            f"{spec.name} shows images, and engine {engine.kind} with these settings reads text only. Choose "
            f"engine {kinds} without engine.urls{_or_text(spec)}."
        )


def _or_text(spec: EnvSpec) -> str:
    return f", or set {spec.params_setting}.observation text" if "observation" in spec.params_model.model_fields else ""
