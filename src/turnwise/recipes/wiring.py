"""From a configuration to a model and those who play with it."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from turnwise.config.schema import Config
from turnwise.core.protocols import Sampling
from turnwise.engine.native.engine import NativeEngine
from turnwise.engine.paged.build import build_paged_runner
from turnwise.models.attention import ATTENTION
from turnwise.models.compiling import compile_layers
from turnwise.models.loading import LoadedModel, device_of, load_model
from turnwise.models.lora import RUN_BASE, LoraSettings, add_lora, base_of, has_adapter, name_base
from turnwise.models.saving import save_model, written_aside
from turnwise.recipes.contexts import build_context
from turnwise.recipes.sources import use_own_adapter
from turnwise.recipes.worlds import Worlds
from turnwise.render.renderer import Renderer
from turnwise.rollout.collect import Collector
from turnwise.rollout.limits import Limits
from turnwise.training.warmup import warmed_tiny


def model_loader(config: Config) -> Callable[[str], LoadedModel]:
    """Loads any model by name or folder, with the run's settings and the attention that engine and learner need."""
    settings = config.model

    def load(name: str) -> LoadedModel:
        return load_model(
            name,
            dtype=settings.dtype,
            device=settings.device,
            chat_template=settings.chat_template,
            attn_implementation=ATTENTION,
            seed=settings.warmup_seed,
        )

    return load


def load_policy(
    config: Config, worlds: Worlds, show: Callable[[int, int], None], run: Path | None = None
) -> tuple[LoadedModel, float]:
    """The model that a run starts from, and the seconds that its warm-up took.

    `run`: the folder of the run, which keeps a copy of a tiny that was warmed up, and then needs no cache any more.
    """
    load = model_loader(config)
    base = None if run is None else run / RUN_BASE
    if config.model.name == "tiny" and config.model.warmup_steps:
        if base is not None and base.is_dir():
            loaded, seconds = load(str(base)), 0.0
        else:
            steps, seed = config.model.warmup_steps, config.model.warmup_seed
            loaded, seconds = warmed_tiny(worlds.with_params, steps=steps, seed=seed, load=load, show=show)
            if base is not None:
                save_model(loaded.model, loaded.tokenizer, base)
                loaded = replace(loaded, name=str(base))
    else:
        own = config if run is None else use_own_adapter(config, run)
        loaded, seconds = load(own.model.name), 0.0
        if base is not None and has_adapter(loaded.model):
            _keep_base_of_adapter(loaded, base)
    lora = config.lora
    if lora.rank and not has_adapter(loaded.model):  # a checkpoint of such a run has its own
        alpha = 2.0 * lora.rank if lora.alpha is None else lora.alpha
        settings = LoraSettings(rank=lora.rank, alpha=alpha, targets=lora.targets, seed=config.seed)
        add_lora(loaded.model, loaded.name, settings)
    if config.system.compile and device_of(loaded.model).type == "cuda":
        compile_layers(loaded.model)
    return loaded, seconds


def _keep_base_of_adapter(loaded: LoadedModel, base: Path) -> None:
    """An adapter of another run is trained further: its base, which that run keeps, is kept by this one too."""
    theirs = Path(base_of(Path(loaded.name).expanduser()))
    if theirs.name != RUN_BASE or not (theirs.parent / "config.toml").is_file():
        return
    if not base.is_dir():
        with written_aside(base) as aside:
            shutil.copytree(theirs, aside, dirs_exist_ok=True)
    name_base(loaded.model, str(base))


def build_engine(config: Config, model: Any, renderer: Renderer, *, pages: int | None = None) -> NativeEngine:
    """An engine over the model's own parameters, of the kind that its device wants.

    `pages`: of its cache on a GPU; none: as many as system.cache_share allows.
    """
    common = {"slots": config.rollout.in_flight, "stop_ids": renderer.stop_ids, "decode": renderer.decode}
    runner = None
    if device_of(model).type != "cpu":
        runner = build_paged_runner(
            model,
            **common,  # type: ignore[arg-type]
            longest=config.rollout.max_tokens,
            steps=config.system.decode_steps,
            share=config.system.cache_share,
            pages=pages,
        )
    return NativeEngine(model, **common, runner=runner)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Players:
    """A policy ready to play: for training, as an estimator's greedy member, and for evaluation."""

    renderer: Renderer
    engine: NativeEngine
    collector: Collector
    greedy: Collector
    evaluator: Collector
    pages: int | None
    """Of the engine's cache, where that is planned."""


def build_players(config: Config, worlds: Worlds, loaded: LoadedModel, pages: int | None = None) -> Players:
    renderer = Renderer(loaded.tokenizer, loaded.stop_ids, config.rollout.prefix)
    engine = build_engine(config, loaded.model, renderer, pages=pages)

    def collector(sampling: Sampling, run_seed: int) -> Collector:
        limits = Limits(sampling=sampling, max_tokens=config.rollout.max_tokens, timeout_s=config.rollout.timeout_s)
        return Collector(
            policy=engine,
            make_env=worlds.make,
            context=build_context(config, renderer),
            limits=limits,
            in_flight=config.rollout.in_flight,
            attempts=config.rollout.attempts,
            run_seed=run_seed,
        )

    shared = {"max_tokens": config.rollout.max_new_tokens, "stop": config.rollout.stop}
    training = Sampling(temperature=config.rollout.temperature, **shared)  # type: ignore[arg-type]
    evaluation = Sampling(
        temperature=config.eval.temperature,
        top_p=config.eval.top_p,
        top_k=config.eval.top_k,
        **shared,  # type: ignore[arg-type]
    )
    # Evaluations of all runs meet equal random numbers, so that what differs is the policy.
    return Players(
        renderer=renderer,
        engine=engine,
        collector=collector(training, config.seed),
        greedy=collector(replace(training, temperature=0.0), config.seed),
        evaluator=collector(evaluation, 0),
        pages=pages,
    )
