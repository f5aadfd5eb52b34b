"""Load the model that a run starts from, and warm it up."""

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from turnwise.config.schema import Config
from turnwise.files.disk import atomic_folder
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.layers import compile_layers
from turnwise.models.loading.catalogue import SMOLLM2_VISION, WARMED_UP
from turnwise.models.loading.load import LoadedModel, device_of, load_model
from turnwise.models.loading.lora import (
    RUN_BASE,
    LoraPart,
    LoraSettings,
    add_lora,
    base_model_of,
    has_adapter,
    set_base_model,
)
from turnwise.models.loading.save import save_model
from turnwise.models.settings import ModelConfig
from turnwise.models.vision.encoder import trains_vision
from turnwise.record.images import IMAGES_FOLDER
from turnwise.report.progress import Progress
from turnwise.run.agent_warmup import load_random_reply, warm_up_agent
from turnwise.run.check_images import check_engine_reads_images, check_sees_images
from turnwise.run.environment_mix import EnvironmentMix
from turnwise.run.find_model import use_own_adapter
from turnwise.run.trial_episodes import check_replies_fit
from turnwise.training.warmup import has_warmup, load_warmed_up

LoadModel = Callable[[str], LoadedModel]
"""Loads a model by name or folder."""


def model_loader(settings: ModelConfig) -> LoadModel:
    """Return a function that loads a model by name or folder, with the run's settings and the engine's attention.

    Unless the settings say otherwise, a vision tower is frozen if the model of the settings has a trained one.
    """
    train_vision = settings.name == SMOLLM2_VISION if settings.train_vision is None else bool(settings.train_vision)

    def load(name: str) -> LoadedModel:
        return load_model(
            name,
            dtype=settings.dtype,
            device=settings.device,
            chat_template=settings.chat_template,
            attn_implementation=ATTENTION,
            train_vision=train_vision,
        )

    return load


class TimeLimitReached(Exception):
    """train.max_minutes passed before the first step."""


def load_policy_of_run(
    config: Config, environments: EnvironmentMix, run: Path, progress: Progress
) -> tuple[LoadedModel, float]:
    """Load the model and show the progress of its warm-up; return the warm-up's seconds too.

    A warm-up counts against train.max_minutes. One that it stops is not kept: a resumed run starts it again.
    """

    def check(loaded: LoadedModel) -> None:
        check_replies_fit(config.rollout, environments, loaded.tokenizer)

    began, spent_s, limit_s = time.monotonic(), 0.0, progress.limit_s

    def show_warmup(done: int, total: int) -> None:
        nonlocal spent_s
        progress.phase("warm-up", done, total)
        spent_s = time.monotonic() - began
        if limit_s is not None and spent_s > limit_s and done < total:
            raise TimeLimitReached(f"the warm-up of {config.model.name} had done {done} of {total} steps")

    loaded = load_policy(config, environments, show_warmup, run, check)
    progress.limit_s = None if limit_s is None else limit_s - spent_s
    return loaded


def load_policy(
    config: Config,
    environments: EnvironmentMix,
    show_warmup: Callable[[int, int], None],
    run: Path | None = None,
    check: Callable[[LoadedModel], None] = lambda loaded: None,
) -> tuple[LoadedModel, float]:
    """Load the model that a run starts from; return it and the seconds of its warm-up.

    The folder `run` keeps a copy of a warmed-up model, and of the base model of an adapter, so that it can be resumed
    without the cache and without the run that trained the adapter. `check`: called with the model before its warm-up.
    """
    check_engine_reads_images(config.engine, environments)
    load = _checked_loader(config.model, environments, check)
    base = None if run is None else run / RUN_BASE
    if config.model.warmup_steps and _is_warmed_up(config, environments):
        loaded, seconds = _load_warmed_up_once(config, environments, load, show_warmup, base)
    else:
        loaded, seconds = load((config if run is None else use_own_adapter(config, run)).model.name), 0.0
        if base is not None and has_adapter(loaded.model):
            _keep_base_of_adapter(loaded, base)
    _add_adapter(config, loaded)
    if config.system.compile and device_of(loaded.model).type == "cuda":
        compile_layers(loaded.model)
    if run is not None and loaded.images is not None:
        loaded.images.store.keep_in(run / IMAGES_FOLDER)
    return loaded, seconds


def _checked_loader(
    model: ModelConfig, environments: EnvironmentMix, check: Callable[[LoadedModel], None]
) -> LoadModel:
    """Return a loader that checks each model as soon as it is loaded, before a warm-up takes minutes."""
    load_any = model_loader(model)

    def load(name: str) -> LoadedModel:
        loaded = load_any(name)
        check_sees_images(loaded, environments)
        check(loaded)
        return loaded

    return load


def _load_warmed_up_once(
    config: Config,
    environments: EnvironmentMix,
    load: LoadModel,
    show_warmup: Callable[[int, int], None],
    base: Path | None,
) -> tuple[LoadedModel, float]:
    """Return the warmed-up model and the seconds that took; the folder `base` keeps it for a resumed run."""
    if base is None:
        return _warm_up(config, environments, load, show_warmup)
    if base.is_dir():
        return load(str(base)), 0.0
    loaded, seconds = _warm_up(config, environments, load, show_warmup)
    save_model(loaded.model, loaded.tokenizer, base)
    return replace(loaded, name=str(base)), seconds


def _add_adapter(config: Config, loaded: LoadedModel) -> None:
    """Add the LoRA adapter of the settings, unless the model is a checkpoint that already has one."""
    lora = config.lora
    if not lora.rank or has_adapter(loaded.model):
        return
    alpha = 2.0 * lora.rank if lora.alpha is None else lora.alpha
    part: LoraPart = "both" if trains_vision(loaded.model) else "language"
    if config.model.train_vision == "only":
        part = "vision"
    settings = LoraSettings(rank=lora.rank, alpha=alpha, targets=lora.targets, seed=config.seed, part=part)
    add_lora(loaded.model, loaded.name, settings)


def _is_warmed_up(config: Config, environments: EnvironmentMix) -> bool:
    if environments.has_agent:
        return load_random_reply(config.agent) is not None and config.model.name in WARMED_UP
    return bool(environments.specs) and has_warmup(config.model.name, environments.with_params)


def _warm_up(
    config: Config, environments: EnvironmentMix, load: LoadModel, show: Callable[[int, int], None]
) -> tuple[LoadedModel, float]:
    """Return the warmed-up model and the seconds that took. A model of an agent is not cached, since an agent may
    depend on anything."""
    reply = load_random_reply(config.agent)
    if reply is None:
        return load_warmed_up(
            config.model.name,
            environments.with_params,
            steps=config.model.warmup_steps,
            load=load,
            show=show,
            single_turns=config.context.shows_current_turn_only,
            timeout_s=config.rollout.timeout_s,
        )
    began, loaded = time.perf_counter(), load(config.model.name)
    warm_up_agent(config, environments, loaded, reply, show)
    return loaded, time.perf_counter() - began


def _keep_base_of_adapter(loaded: LoadedModel, base: Path) -> None:
    """Copy the base model of another run's adapter to `base`, if that run keeps it in its own folder."""
    source = Path(base_model_of(Path(loaded.name).expanduser()))
    if source.name != RUN_BASE or not (source.parent / "config.toml").is_file():
        return
    if not base.is_dir():
        with atomic_folder(base) as aside:
            shutil.copytree(source, aside, dirs_exist_ok=True)
    set_base_model(loaded.model, str(base))
