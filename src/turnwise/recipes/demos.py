"""What `turnwise sft` imitates, as samples."""

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from transformers import AutoTokenizer

from turnwise.config.load import find_run
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.core.samples import Sample
from turnwise.data.demonstrations import Exchange, build_demonstration, read_conversations
from turnwise.data.samples import build_samples
from turnwise.envs.text_env import TextEnv
from turnwise.envs.tool_env import ToolEnv
from turnwise.models.loading.load import LoadedModel
from turnwise.recipes.environment_mix import EnvironmentMix
from turnwise.recipes.sources import find_checkpoint
from turnwise.record.run_folder import RunFolder
from turnwise.record.trajectories import trajectory_from_row
from turnwise.render.renderer import Renderer
from turnwise.tools.call_formats import CALL_FORMATS, parse_calls
from turnwise.training.sft import opening_tools, solve_demonstration

SOLVER = "solver"

Show = Callable[[int, int], None]


def check_demos(demos: str, count: int, worlds: EnvironmentMix) -> None:
    """Before anything is loaded: is there something to imitate?"""
    if demos == SOLVER:
        without = [kind.name for kind in worlds.kinds.values() if kind.cls.solve is TextEnv.solve]
        if without:
            raise UserError(
                f"{without[0]} has no solver: give --demos a run with successes or a JSONL file of messages"
            )
    elif demos.endswith(".jsonl"):
        _check_styles(demos, count, worlds)
    else:
        find_run(demos)


def _check_styles(demos: str, count: int, worlds: EnvironmentMix) -> None:
    """Calls that no environment here could read would be imitated in vain."""
    ours = {params["style"] for kind, params in worlds.with_params if issubclass(kind.cls, ToolEnv)}
    answers = [exchange.answer for talk in _conversations(demos, count) for exchange in talk]
    if not ours or any(parse_calls(answer, style).calls for answer in answers for style in ours):
        return
    others = [
        style for style in CALL_FORMATS if style not in ours and style != "python"
    ]  # such a block may be an answer
    theirs = next((style for style in others if any(parse_calls(answer, style).calls for answer in answers)), None)
    if theirs is not None:
        raise UserError(
            f'{demos} has calls in the style "{theirs}" and none in "{min(ours)}", which the environment reads: give '
            f"--env.params.style {theirs}, or write them in the other"
        )


def _conversations(demos: str, count: int) -> Iterator[list[Exchange]]:
    return islice(read_conversations(Path(demos).expanduser()), count)


def demonstrations(
    config: Config, worlds: EnvironmentMix, loaded: LoadedModel, renderer: Renderer, show: Show
) -> list[Sample]:
    """What is imitated, in an order that depends on the seed alone."""
    demos, count = config.sft.demos or SOLVER, config.sft.count
    if demos == SOLVER:
        think = config.sft.think
        played = asyncio.run(
            solve_demonstration(worlds.with_params, count=count, seed=config.seed, think=think, show=show)
        )
        samples = [build_demonstration(number, each, renderer) for number, each in enumerate(played)]
    elif demos.endswith(".jsonl"):
        tools = asyncio.run(opening_tools(worlds.with_params)) if renderer.renders_tools else ()
        told = ([replace(first, tools=tools), *later] for first, *later in _conversations(demos, count))
        samples = [build_demonstration(number, each, renderer) for number, each in enumerate(told)]
    else:
        samples = _successes(find_run(demos), loaded, count)
    _check_lengths(samples, config, demos)
    return samples


def _successes(run: Path, loaded: LoadedModel, count: int) -> list[Sample]:
    """The ids that the run sampled, as they are: its tokenizer must be the model's own."""
    folder = RunFolder.open(run)
    rows = [entry for entry in folder.read_index() if entry["status"] == "succeeded"][-count:]
    if not rows:
        raise UserError(f"{run} has recorded no successful episode: train it further, or give another")
    theirs = AutoTokenizer.from_pretrained(find_checkpoint(run, None))
    if theirs.get_vocab() != loaded.tokenizer.get_vocab():
        raise UserError(
            f"{run} was played with another tokenizer than {loaded.name}'s: give the model that it started from"
        )
    return build_samples([trajectory_from_row(folder.read_trajectory(entry)) for entry in rows])


def _check_lengths(samples: Sequence[Sample], config: Config, demos: str) -> None:
    if not samples:
        raise UserError(f"{demos} holds no demonstration: give another")
    longest = max(map(len, samples))
    if longest > config.rollout.max_tokens:
        raise UserError(
            f"a demonstration has {longest} tokens, and rollout.max_tokens is {config.rollout.max_tokens}: raise it"
        )
    answer = max(int(sample.turn_ids[sample.mask].bincount().max()) for sample in samples)
    if answer > config.rollout.max_new_tokens:
        thinks = demos == SOLVER and config.sft.think
        thinking = ", or leave the thinking out with --sft.think false" if thinks else ""
        raise UserError(
            f"an answer of the demonstrations has {answer} tokens, and rollout.max_new_tokens "
            f"{config.rollout.max_new_tokens} would cut it: raise it{thinking}"
        )


def digest_of(samples: Sequence[Sample]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for sample in samples:
        digest.update(sample.ids.numpy().tobytes())
    return digest.hexdigest()
