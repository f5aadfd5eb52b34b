"""`turnwise data`: describe stored episodes, export them as a dataset, and estimate a policy's value from them."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from turnwise.algos.advantage_types import find_turns
from turnwise.algos.off_policy_evaluation import OffPolicyEstimate, estimate_value
from turnwise.config.load import build, read_run
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.core.samples import Sample, on_device
from turnwise.core.trajectory import Trajectory
from turnwise.data.packing import micro_batches, pack, unpack
from turnwise.data.samples import TokenTable, build_samples
from turnwise.data.settings import DataConfig
from turnwise.files.disk import atomic_folder
from turnwise.files.run_folders import find_run_folder
from turnwise.models.forward import batch_attention
from turnwise.models.loading.load import device_of
from turnwise.pictures.image_store import image_file, read_image_file
from turnwise.record.images import IMAGES_FOLDER, image_hashes
from turnwise.record.jsonl import encode_row
from turnwise.record.trajectories import sampler_from_row
from turnwise.run.build import build_renderer
from turnwise.run.dataset_rows import to_dataset_row
from turnwise.run.datasets import StoredEpisode, read_episodes
from turnwise.run.find_model import find_checkpoint
from turnwise.run.find_source import check_free, find_data
from turnwise.run.load_policy import model_loader
from turnwise.run.resources import MICRO_TOKENS
from turnwise.run.stored_images import StoredImages, find_images_folder
from turnwise.run.stored_sources import TOKENS_FILE, Source, open_source, read_recorded
from turnwise.run.training_traces import write_traces
from turnwise.training.estimators.token_rewards import env_turn_ids, turn_matrix
from turnwise.training.learner import token_logprobs

CARD = """\
---
task_categories: [reinforcement-learning]
configs: [{{config_name: default, data_files: data/train.jsonl}}]
---
Episodes of {run}, exported by `turnwise data export`: one row per episode.

turns: context and action as text and as token ids, log-probabilities of the sampler, rewards. sampler: temperature (0:
greedy), top_p and top_k; log-probabilities are those at this temperature before top-p and top-k. Columns without a
fixed type, such as info, are JSON text. `tokens.jsonl` names the ids. A turn's images list the hash of each image in
its context and the range of its ids there; the image is `images/HASH.png`.

Train on it with `turnwise train ENV --data FOLDER`, or read it with `datasets.load_dataset(FOLDER)`.
"""


Episodes = Literal["training", "evaluation", "all"]
"""Episodes of a run: see `DataConfig.episodes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSummary:
    episodes: int
    succeeded: int
    tasks: int
    comparable: int
    """Tasks with two episodes whose rewards differ."""
    turns: int
    sampled_tokens: int
    rewards: Sequence[float]
    """Total rewards in ascending order."""
    statuses: Mapping[str, int]
    versions: tuple[int, int] | None
    """Oldest and newest version of the weights that sampled them. None if unknown."""
    samplers: Mapping[str, int]
    """Number of episodes by how they were sampled, such as "greedily"."""
    images: int
    """Different images in the contexts."""
    missing_images: int
    """Images without a file."""


def _open(source: str, episodes: Episodes) -> Source:
    return open_source(find_data(source), DataConfig(episodes=episodes))


def inspect_data(source: str, episodes: Episodes) -> DataSummary:
    """Summarise the recorded episodes of a run or an exported dataset, without a model."""
    statuses, samplers = Counter[str](), Counter[str]()
    rewards: dict[str, list[float]] = {}
    versions, images = set[int](), set[str]()
    turns = tokens = 0
    for where, row in read_recorded(source, episodes):
        try:
            statuses[row["status"]] += 1
            sampler = sampler_from_row(row.get("sampler"))
            samplers["unknown" if sampler is None else sampler.describe()] += 1
            rewards.setdefault(json.dumps(row["task"], sort_keys=True), []).append(float(row["reward"]))
            turns, tokens = turns + len(row["turns"]), tokens + sum(len(turn["action_ids"]) for turn in row["turns"])
            for turn in row["turns"]:
                version = turn["policy_version"]
                versions.update(version if isinstance(version, list) else [] if version is None else [version])
                images.update(image_hashes(turn))
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{where} is not a trajectory ({error!r}). Restore the file from a copy.") from None
    folder = find_images_folder(_open(source, episodes).folder)
    return DataSummary(
        episodes=statuses.total(),
        succeeded=statuses["succeeded"],
        tasks=len(rewards),
        comparable=sum(len(set(group)) > 1 for group in rewards.values()),
        turns=turns,
        sampled_tokens=tokens,
        rewards=sorted(reward for group in rewards.values() for reward in group),
        statuses=dict(statuses.most_common()),
        versions=(min(versions), max(versions)) if versions else None,
        samplers=dict(samplers.most_common()),
        images=len(images),
        missing_images=sum(not image_file(folder, image).is_file() for image in images),
    )


def export_traces(run: str, to: Path, episodes: Episodes) -> int:
    """Write the recorded episodes of a run as OpenEnv's training traces; return their number."""
    return write_traces(read_recorded(str(find_run_folder(run)), episodes), to)


def export_data(run: str, to: Path, episodes: Episodes) -> int:
    """Write the recorded episodes of a run as a dataset folder; return their number. Ids stay as they were sampled."""
    check_free(to)
    path, count, images = find_run_folder(run), 0, set[str]()
    names = path / "trajectories" / TOKENS_FILE
    with atomic_folder(to) as folder:
        (folder / "data").mkdir()
        with (folder / "data" / "train.jsonl").open("wb") as file:
            for where, row in read_recorded(str(path), episodes):
                file.write(encode_row(_dataset_row(row, where)) + b"\n")
                count += 1
                new = {image for turn in row["turns"] for image in image_hashes(turn)} - images
                _copy_images(sorted(new), path / IMAGES_FOLDER, folder / IMAGES_FOLDER, where)
                images |= new
        (folder / TOKENS_FILE).write_bytes(names.read_bytes())
        (folder / "README.md").write_text(CARD.format(run=path.name), encoding="utf-8")
    return count


def _copy_images(hashes: Sequence[str], source: Path, to: Path, where: str) -> None:
    for hashe in hashes:
        try:
            data = read_image_file(image_file(source, hashe))
        except UserError as error:
            raise UserError(f"{where}: {error}") from error
        to.mkdir(exist_ok=True)
        image_file(to, hashe).write_bytes(data)


def _dataset_row(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    try:
        return to_dataset_row(row)
    except (KeyError, TypeError) as error:
        raise UserError(f"{where} is not a trajectory ({error!r}). Restore the file from a copy.") from None


def evaluate_offline(run: str, sources: Sequence[str], episodes: Episodes) -> OffPolicyEstimate:
    """Estimate the expected return of a run's newest checkpoint from stored episodes, at their temperature."""
    path = find_run_folder(run)
    config: Config = build(read_run(str(path)))
    loaded = model_loader(config.model)(str(find_checkpoint(path, None)))
    vocabulary, renderer = loaded.model.get_input_embeddings().num_embeddings, build_renderer(config.rollout, loaded)
    data, images = DataConfig(episodes=episodes), StoredImages(renderer.images)
    read = (read_episodes(find_data(source), data, renderer, vocabulary, images) for source in sources)
    trajectories = [_check_evaluable(episode) for stored in read for episode in stored]
    images.keep()
    if not trajectories:
        raise UserError(f"{', '.join(sources)}: no episode to evaluate on. Give other sources.")
    samples = build_samples(trajectories, renderer.grammars.allowed_sets)
    table = TokenTable(samples, len(trajectories))
    scores = _score(loaded.model, samples, config.train.micro_tokens or MICRO_TOKENS)
    log_ratios = [score - sample.sampler_logprobs[sample.mask] for score, sample in zip(scores, samples, strict=True)]
    turns = find_turns(table.mask, env_turn_ids(trajectories, table))
    by_turn = turns.sums(table.to_matrix(log_ratios))
    return estimate_value(by_turn, turn_matrix(trajectories)[:, : by_turn.shape[1]], turns.mask)


def _check_evaluable(episode: StoredEpisode) -> Trajectory:
    if problem := episode.sampler_problem:
        raise UserError(
            f"{episode.where} was {problem}, so it cannot evaluate another policy: importance sampling needs the "
            "probabilities with which tokens were drawn. Remove such episodes."
        )
    return episode.trajectory


@torch.no_grad()
def _score(model: Any, samples: Sequence[Sample], micro_tokens: int) -> list[Tensor]:
    """Return the model's log-probabilities of each sample's sampled tokens."""
    logprobs: dict[int, Tensor] = {}
    for part in micro_batches(samples, micro_tokens):
        batch = on_device(pack([samples[index] for index in part]), device_of(model))
        with batch_attention(model, batch):
            logprobs.update(zip(part, unpack(batch, token_logprobs(model, batch)[0].cpu()), strict=True))
    return [logprobs[index] for index in range(len(samples))]
