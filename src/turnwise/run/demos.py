"""Demonstrations of `turnwise sft`: check them, and build samples from a solver, a run or a file of conversations."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.core.messages import Exchange
from turnwise.core.protocols import Observation
from turnwise.core.random_streams import random_stream
from turnwise.core.samples import Sample
from turnwise.core.trajectory import Trajectory
from turnwise.data.conversations import read_conversations
from turnwise.data.demonstrations import build_demonstration, format_calls
from turnwise.data.samples import build_samples
from turnwise.envs.spec import EnvSpec
from turnwise.envs.text_env import TextEnv
from turnwise.envs.tool_env import ToolEnv
from turnwise.files.run_folders import find_run_folder
from turnwise.files.table_files import is_table_file
from turnwise.models.loading.load import LoadedModel
from turnwise.record.images import IMAGES_FOLDER
from turnwise.record.labelled_episodes import read_labelled
from turnwise.record.labels import Label
from turnwise.record.run_folder import RunFolder
from turnwise.record.trajectories import trajectory_from_row
from turnwise.render.renderer import Renderer
from turnwise.run.demo_source import SOLVER, check_demos_source, find_labelled_run
from turnwise.run.environment_mix import EnvironmentMix
from turnwise.run.find_model import find_checkpoint
from turnwise.run.stored_images import StoredImages
from turnwise.tools.call_formats import CALL_FORMATS, parse_calls
from turnwise.training.sft import first_observation, solve_demonstrations

Show = Callable[[int, int], None]


def check_demos(demos: str, count: int, environments: EnvironmentMix) -> None:
    """Check before anything is loaded that there are demonstrations."""
    check_demos_source(demos, has_environment=bool(environments.specs))
    if demos == SOLVER:
        without = [spec.name for spec in environments.specs.values() if not has_solver(spec)]
        if without:
            raise UserError(
                f"{without[0]} has no solver. Name a run with successes or a file of conversations in sft.demos."
            )
        _check_states(environments)
    elif is_table_file(demos) and find_labelled_run(demos) is None:
        _check_call_formats(demos, count, environments)


def has_solver(spec: EnvSpec) -> bool:
    return spec.text_env is not None and spec.text_env.solve is not TextEnv.solve


def _check_states(environments: EnvironmentMix) -> None:
    """Raise UserError if the solver would have to describe states that the environment does not know."""
    for spec, params in environments.with_params:
        form = spec.reasoning_format(params)
        if form != "free" and spec.text_env is not None and not spec.text_env.knows_state():
            setting = f"{spec.params_setting}.reasoning"
            raise UserError(
                f"{setting} {form}: a solver's demonstrations describe states, and {spec.name} has no state_text(). "
                "Define it, or name a run with successes in sft.demos."
            )


def _check_call_formats(demos: str, count: int, environments: EnvironmentMix) -> None:
    """Raise UserError if all tool calls are in formats that the environments do not parse."""
    parsed = _call_styles(environments)
    answers = [
        exchange.answer for conversation in _conversations(demos, count, environments) for exchange in conversation
    ]
    if not parsed or any(parse_calls(answer, style).calls for answer in answers for style in parsed):
        return
    others = [style for style in CALL_FORMATS if style not in parsed and style != "python"]  # a block may be an answer
    style = next((style for style in others if any(parse_calls(answer, style).calls for answer in answers)), None)
    if style is not None:
        raise UserError(
            f'{demos} has tool calls in the style "{style}" and none in "{min(parsed)}", which the environment parses. '
            f"Set env.params.style to {style}, or convert the file."
        )


def _call_styles(environments: EnvironmentMix) -> set[str]:
    return {params["style"] for spec, params in environments.with_params if spec.subclass_of(ToolEnv) is not None}


def _conversations(demos: str, count: int, environments: EnvironmentMix) -> Iterator[list[Exchange]]:
    """Read the file. Calls of an environment with tools are written in the style that it parses."""
    styles = _call_styles(environments)
    for conversation in islice(read_conversations(Path(demos).expanduser()), count):
        yield [_write_calls(exchange, min(styles)) for exchange in conversation] if styles else conversation


def _write_calls(exchange: Exchange, style: str) -> Exchange:
    return replace(exchange, answer=exchange.answer + format_calls(exchange.calls, style), calls=())


def build_demonstrations(
    config: Config, environments: EnvironmentMix, loaded: LoadedModel, renderer: Renderer, show: Show
) -> list[Sample]:
    """Build the samples, in an order that depends on the seed alone."""
    demos, count = config.sft.demos or SOLVER, config.sft.count
    if demos == SOLVER:
        solved = asyncio.run(
            solve_demonstrations(
                environments.with_params,
                count=count,
                seed=config.seed,
                think=config.sft.think,
                attempts=config.rollout.attempts,
                show=show,
                timeout_s=config.rollout.timeout_s,
            )
        )
        samples = [build_demonstration(number, episode, renderer) for number, episode in enumerate(solved)]
    elif (run := find_labelled_run(demos)) is not None:
        samples = _build_from_rows(run, list(read_labelled(run, Label.GOOD))[-count:], loaded)
    elif is_table_file(demos):
        opening = asyncio.run(first_observation(environments.with_params))
        read = (
            [_open_as_episode(first, opening, renderer.renders_tools), *later]
            for first, *later in _conversations(demos, count, environments)
        )
        samples = [build_demonstration(number, conversation, renderer) for number, conversation in enumerate(read)]
    else:
        samples = _read_successes(find_run_folder(demos), loaded, count)
    _check_lengths(samples, config, demos, samples_answers=bool(environments.specs))
    return samples


def _open_as_episode(first: Exchange, opening: Observation | None, renders_tools: bool) -> Exchange:
    """Give a conversation the environment's system message, unless it has one, and the environment's tools.

    With a system message of its own it also describes its tools, if the chat template does not (`renders_tools`).
    """
    if opening is None:
        return first
    prompt = tuple(message for message in opening.messages if message.role == "system")
    if not prompt or any(message.role == "system" for message in first.messages):
        return replace(first, tools=first.tools or opening.tools) if renders_tools else first
    messages, in_words = (*prompt, *first.messages), "" if first.tools else opening.tools_in_words
    return replace(first, messages=messages, tools=first.tools or opening.tools, tools_in_words=in_words)


def hold_out(samples: Sequence[Sample], share: float, seed: int) -> tuple[list[Sample], list[Sample]]:
    """Split off a share of the samples, at least one if it is above 0; return those to train on and the others."""
    count = min(max(1, round(share * len(samples))), len(samples) - 1) if share else 0
    chosen = set(random_stream("sft held out", seed).sample(range(len(samples)), count))
    trained = [sample for number, sample in enumerate(samples) if number not in chosen]
    return trained, [samples[number] for number in sorted(chosen)]


def _read_successes(run: Path, loaded: LoadedModel, count: int) -> list[Sample]:
    """Build samples of the last successful episodes of a run."""
    folder = RunFolder.open(run)
    entries, lines = list[tuple[str, dict[str, Any]]](), Counter[int]()
    for entry in folder.read_index():
        lines[entry["step"]] += 1
        if entry["status"] == "succeeded":
            entries.append((f"{folder.trajectories_path(entry['step'])} line {lines[entry['step']]}", entry))
    if not entries:
        raise UserError(f"{run} has no recorded successful episode. Train it further, or give another run.")
    return _build_from_rows(run, [(where, folder.read_trajectory(entry)) for where, entry in entries[-count:]], loaded)


def _build_from_rows(run: Path, rows: Sequence[tuple[str, dict[str, Any]]], loaded: LoadedModel) -> list[Sample]:
    """Build samples of the token ids that the run sampled, so its tokenizer must be the model's."""
    tokenizer = AutoTokenizer.from_pretrained(find_checkpoint(run, None))
    if tokenizer.get_vocab() != loaded.tokenizer.get_vocab():
        raise UserError(f"{run} used another tokenizer than {loaded.name}. Give the model that the run started from.")
    trajectories, images = list[Trajectory](), StoredImages(loaded.images)
    for where, row in rows:
        trajectories.append(trajectory_from_row(row))
        images.check(trajectories[-1], run / IMAGES_FOLDER, where)
    images.keep()
    return build_samples([_without_constraints(trajectory) for trajectory in trajectories])


def _without_constraints(trajectory: Trajectory) -> Trajectory:
    """Return the trajectory as if its replies had been free: a model that imitates them learns their format too."""
    return replace(trajectory, turns=tuple(replace(turn, constraint=None) for turn in trajectory.turns))


def _check_lengths(samples: Sequence[Sample], config: Config, demos: str, *, samples_answers: bool) -> None:
    """Check that demonstrations fit. `samples_answers`: the model also answers, within rollout.max_new_tokens."""
    if not samples:
        below = " below the line with the names of its columns" if demos.lower().endswith(".csv") else ""
        raise UserError(f"{demos} has no demonstrations{below}. Add some, or give another source.")
    longest = max(map(len, samples))
    if longest > config.rollout.max_tokens:
        raise UserError(
            f"A demonstration has {longest} tokens, and rollout.max_tokens is {config.rollout.max_tokens}. "
            f"Set rollout.max_tokens to at least {longest}."
        )
    if not samples_answers:
        return
    answer = max(int(sample.turn_ids[sample.mask].bincount().max()) for sample in samples)
    if answer > config.rollout.max_new_tokens:
        thinks = demos == SOLVER and config.sft.think
        or_less = ", or remove the thinking (sft.think false)" if thinks else ""
        raise UserError(
            f"An answer of the demonstrations has {answer} tokens, which rollout.max_new_tokens "
            f"{config.rollout.max_new_tokens} would cut. "
            f"Set rollout.max_new_tokens to at least {answer}{or_less}."
        )


def hash_samples(samples: Sequence[Sample]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for sample in samples:
        digest.update(sample.ids.numpy().tobytes())
    return digest.hexdigest()
