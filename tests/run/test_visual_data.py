"""Stored episodes with images: exact ids and pixels in every offline method, and one line for what does not fit."""

import base64
import json
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from runs_for_tests import learnt, metrics, quiet, rewind, small
from turnwise.cli.main import main
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.core.images import find_images, image_hash, image_token_id
from turnwise.core.trajectory import Trajectory
from turnwise.data.replay import Replay
from turnwise.data.samples import build_samples
from turnwise.data.settings import DataConfig
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.critic import UtteranceCritic
from turnwise.models.loading.load import LoadedModel, load_model
from turnwise.models.loading.lora import RUN_BASE
from turnwise.models.vision.processor import ImageProcessor
from turnwise.record.run_folder import RunFolder
from turnwise.record.trajectories import open_replay
from turnwise.render.renderer import Renderer
from turnwise.run.data_tools import _score, evaluate_offline, inspect_data
from turnwise.run.datasets import StoredEpisode, fill_replay, read_episodes
from turnwise.run.demos import build_demonstrations
from turnwise.run.environment_mix import build_environment_mix
from turnwise.run.sft import sft
from turnwise.run.stored_images import StoredImages
from turnwise.run.train import train
from turnwise.training.estimators.archer import utterance_sample
from turnwise.training.estimators.utterance_critic import UtteranceCriticLearner
from vision_models_for_tests import VISION_MODELS, png

LAKE: dict[str, Any] = {
    "env__kind": "frozen_lake",
    "env__params__observation": "image",
    "env__params__cell_pixels": 8,
    "env__params__max_turns": 2,
    "env__params__max_actions_per_turn": 1,
    "model__name": "tiny_vlm",
    "model__warmup_steps": 2,
    "rollout__max_new_tokens": 8,
    "rollout__max_tokens": 512,
    "eval__episodes": 1,
    "eval__every": 0,
    "algo__kl_coef": 0.0,
    "algo__entropy_coef": 0.0,
}
CRITIC = {"critic": "utterances", "critic__updates": 1, "critic__batch": 4, "critic__learning_rate": 1e-3}
AWAC = {
    "algo__estimator": "awac",
    "algo__advantage": "gae",
    "algo__estimator__states": 4,
    **CRITIC,
    "critic": "utterance_head",
}
METHODS: dict[str, dict[str, Any]] = {
    "filtered_bc": {"algo__advantage": "clone", "algo__loss": "reinforce", "data__keep": "succeeded"},
    "awr": {"algo__advantage": "step_gae", "algo__loss": "awr"},
    "dpo": {"algo__advantage": "preference", "algo__loss": "dpo", "algo__aggregation": "seq-mean-token-sum"},
    "archer_offline": {"algo__estimator": "archer_offline", "algo__loss": "awr", **CRITIC},
    "off_policy_grpo": {"algo__advantage": "grpo", "algo__aggregation": "seq-mean-token-mean"},
}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step that hardly trains, of two groups of four episodes, every second of which succeeded."""
    folder = tmp_path_factory.mktemp("played")
    train(small(folder, **LAKE, train__steps=1, train__learning_rate=1e-12, algo__advantage="grpo"), console=quiet())
    run = RunFolder.open(folder / "run")
    index = [json.loads(line) for line in run.index_path.read_text().splitlines()]
    lines = b""
    for entry in [entry for entry in index if "evaluation" not in entry]:
        row, won = run.read_trajectory(entry), entry["member"] % 2 == 0
        row["status"] = "succeeded" if won else "failed"
        row["turns"][-1]["turn_reward"] = float(won)
        line = json.dumps(row).encode() + b"\n"
        entry |= {"status": row["status"], "offset": len(lines), "length": len(line)}
        lines += line
    run.trajectories_path(1).write_bytes(lines)
    run.index_path.write_text("".join(json.dumps(entry) + "\n" for entry in index))
    return folder / "run"


@pytest.fixture(scope="module")
def policy(played: Path) -> LoadedModel:
    """The model that sampled the episodes."""
    return load_model(str(played / RUN_BASE), attn_implementation=ATTENTION)


def renderer_of(policy: LoadedModel) -> Renderer:
    assert policy.images is not None
    images = ImageProcessor(policy.images.processor, policy.images.placeholder_id)  # with a store of its own
    return Renderer(policy.tokenizer, policy.stop_ids, images=images)


def read(path: Path, renderer: Renderer, images: StoredImages | None = None) -> list[StoredEpisode]:
    images = StoredImages(renderer.images) if images is None else images
    return list(read_episodes(path, DataConfig(), renderer, 100_000, images))


def offline(folder: Path, sources: Sequence[Path], method: str, **settings: Any) -> Config:
    names = {"data__sources": [str(each) for each in sources]}
    return small(folder, **{**LAKE, "train__steps": 1, **names, **METHODS[method], **settings})


def files_in(folder: Path) -> set[str]:
    return {file.stem for file in folder.iterdir()}


def shown_by(trajectories: Sequence[Trajectory]) -> set[str]:
    return {span.hash for each in trajectories for turn in each.turns for span in turn.images}


def test_stored_images_give_the_logprobs_of_the_sampler(played: Path, policy: LoadedModel) -> None:
    assert policy.images is not None
    images = StoredImages(policy.images)
    renderer = Renderer(policy.tokenizer, policy.stop_ids, images=policy.images)
    samples = build_samples([each.trajectory for each in read(played, renderer, images)])
    images.keep()
    sampled = torch.cat([sample.sampler_logprobs[sample.mask] for sample in samples])
    assert torch.allclose(torch.cat(_score(policy.model, samples, 4096)), sampled, atol=1e-4)
    assert not any((sample.mask & (sample.ids < 0)).any() for sample in samples)
    assert evaluate_offline(str(played), [str(played)], "training").effective_size == pytest.approx(8, abs=1e-2)


def test_logprobs_depend_on_the_stored_pixels(played: Path, policy: LoadedModel) -> None:
    """Otherwise the test above would show nothing."""
    model = load_model(str(played / RUN_BASE), attn_implementation=ATTENTION)
    assert model.images is not None
    samples = build_samples([each.trajectory for each in read(played, renderer_of(policy))])
    model.images.store.get = lambda key: png(32, 32, seed=int(key, 16))  # type: ignore[method-assign]
    sampled = torch.cat([sample.sampler_logprobs[sample.mask] for sample in samples])
    assert (torch.cat(_score(model.model, samples, 4096)) - sampled).abs().max() > 1e-3


@pytest.mark.parametrize("method", METHODS)
def test_method_trains_on_stored_episodes_with_images(tmp_path: Path, played: Path, method: str) -> None:
    assert train(offline(tmp_path, [played], method), console=quiet())["finished"]
    (row,) = [row for row in metrics(tmp_path / "run") if "data/episodes" in row]
    assert row["train/grad_norm"] > 0
    replay = open_replay(tmp_path / "run" / "replay", 1000)
    assert len(replay) == (4 if method == "filtered_bc" else 8)
    assert replay.find_images() <= files_in(tmp_path / "run" / "images")


def test_offline_visual_run_resumes_exactly_without_its_source(tmp_path: Path, played: Path) -> None:
    source = shutil.copytree(played, tmp_path / "source")
    config = {"train__steps": 2, **AWAC}
    train(offline(tmp_path / "whole", [source], "awr", **config), console=quiet())
    images = rewind(tmp_path / "whole" / "run", tmp_path / "cut", step=1) / "images"
    shutil.rmtree(source)
    kept = {image: image.read_bytes() for image in images.iterdir()}
    for image in kept:
        image.write_bytes(png(32, 32))
    with pytest.raises(UserError, match=r"The image .* has changed since it was recorded"):
        train(offline(tmp_path / "cut", [source], "awr", **config), resume=True, console=quiet())
    for image, data in kept.items():
        image.write_bytes(data)
    train(offline(tmp_path / "cut", [source], "awr", **config), resume=True, console=quiet())
    ours, theirs = (learnt(tmp_path / name / "run", step=2) for name in ("whole", "cut"))
    assert ours.keys() == theirs.keys()
    assert all(ours[name].equal(theirs[name]) for name in ours)


@pytest.mark.soak  # the run above resumes a replay with images, and the tests of ArCHer one without
def test_archer_keeps_images_in_its_replay_and_resumes_exactly(tmp_path: Path) -> None:
    settings = {**LAKE, **CRITIC, "algo__estimator": "archer", "algo__loss": "reinforce", "algo__estimator__states": 4}
    config = {**settings, "train__steps": 2, "rollout__group_size": 2}
    train(small(tmp_path / "whole", **config), console=quiet())
    replay = open_replay(tmp_path / "whole" / "run" / "replay", 1000)
    assert replay.find_images() == shown_by([replay.read(entry) for entry in replay.entries])
    assert replay.find_images() <= files_in(tmp_path / "whole" / "run" / "images")
    rewind(tmp_path / "whole" / "run", tmp_path / "cut", step=1)
    train(small(tmp_path / "cut", **config), resume=True, console=quiet())
    ours, theirs = (learnt(tmp_path / name / "run", step=2) for name in ("whole", "cut"))
    assert all(ours[name].equal(theirs[name]) for name in ours)


@pytest.mark.parametrize("own_trunk", [True, False])
def test_utterance_critic_sees_images(policy: LoadedModel, own_trunk: bool) -> None:
    assert policy.images is not None
    critic = UtteranceCritic(policy.model, seed=0, own_trunk=own_trunk)
    for head in (*critic.q_heads, *critic.v_heads):
        torch.nn.init.ones_(head[-1].weight)
    learner = UtteranceCriticLearner(critic, None, target_rate=1.0, expectile=None, micro_tokens=4096)  # type: ignore
    samples = [
        utterance_sample([5, *policy.images.ids(png(32, 32, seed)), 6], [7, 8], [-1.0] * 2, 1.0) for seed in (1, 2)
    ]
    values = learner.estimate_values(samples)
    assert not torch.allclose(values.q[0], values.q[1]) and not torch.allclose(values.v[0], values.v[1])


def fill(folder: Path, renderer: Renderer, sources: Sequence[Path], capacity: int = 100) -> Replay:
    assert renderer.images is not None
    renderer.images.store.keep_in(folder / "images")
    replay = open_replay(folder / "replay", capacity)
    config = offline(folder, sources, "awr")
    fill_replay(replay, config, renderer, 100_000, lambda note: None)
    return replay


def test_fill_keeps_images_of_the_buffer_once(tmp_path: Path, played: Path, policy: LoadedModel) -> None:
    other = shutil.copytree(played, tmp_path / "other")
    replay = fill(tmp_path / "all", renderer_of(policy), [played, other])
    assert len(replay) == 8
    assert (
        files_in(tmp_path / "all" / "images")
        == replay.find_images()
        == files_in(played / "images") & shown_by([replay.read(entry) for entry in replay.entries])
    )
    one = fill(tmp_path / "one", renderer_of(policy), [played], capacity=1)
    kept = shown_by([one.read(entry) for entry in one.entries])
    assert len(one) == 1
    assert files_in(tmp_path / "one" / "images") == kept != replay.find_images()
    assert len(list((tmp_path / "one" / "replay").glob("part_*"))) == 1


def copy_rows(played: Path, folder: Path) -> Path:
    """Copy the run's file of trajectories into a folder with images and the names of its tokens."""
    shutil.copytree(played / "images", folder / "images")
    for name in ("tokens.jsonl", "step_000001.jsonl"):
        shutil.copy(played / "trajectories" / name, folder / name)
    return folder / "step_000001.jsonl"


def test_fill_that_was_killed_ends_as_if_it_was_not(tmp_path: Path, played: Path, policy: LoadedModel) -> None:
    """Killed when episodes of the first source have left the buffer already."""
    first, second = (copy_rows(played, tmp_path / name) for name in ("first", "second"))
    lines = first.read_text().splitlines(keepends=True)
    first.write_text("".join(lines[:4]))
    second.write_text(lines[4])
    (tmp_path / "second" / "images").rename(tmp_path / "hidden")
    with pytest.raises(UserError, match="does not exist"):
        fill(tmp_path / "cut", renderer_of(policy), [first, second], capacity=2)
    (tmp_path / "hidden").rename(tmp_path / "second" / "images")
    names = ("cut", "whole", "cut")
    found = [fill(tmp_path / name, renderer_of(policy), [first, second], capacity=2).entries for name in names]
    assert found[0] == found[1] == found[2]
    assert [entry.source for entry in found[0]] == [f"{first} line 4", f"{second} line 1"]


def test_rows_are_read_with_the_images_beside_them(tmp_path: Path, played: Path, policy: LoadedModel) -> None:
    whole = [each.trajectory for each in read(played, renderer_of(policy))]
    assert shown_by(whole)
    merged = copy_rows(played, tmp_path)
    for path in (played / "trajectories" / merged.name, merged, merged.parent):
        assert [each.trajectory for each in read(path, renderer_of(policy))] == whole


def refused(path: Path, renderer: Renderer) -> str:
    with pytest.raises(UserError) as error:
        read(path, renderer)
    assert "\n" not in str(error.value)
    return str(error.value)


def change_turn(file: Path, **changes: Any) -> dict[str, Any]:
    """Change the first turn of the second row; return it as it was."""
    lines = file.read_text().splitlines()
    row = json.loads(lines[1])
    turn = dict(row["turns"][0])
    row["turns"][0] |= changes
    file.write_text("\n".join([lines[0], json.dumps(row), *lines[2:]]) + "\n")
    return turn


@pytest.mark.parametrize("damage", ["missing", "changed", "cut", "other image"])
def test_damaged_image_is_named_with_its_row(tmp_path: Path, played: Path, policy: LoadedModel, damage: str) -> None:
    file = copy_rows(played, tmp_path)
    (image,) = change_turn(file)["images"]
    path = tmp_path / "images" / f"{image['hash']}.png"
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes({"changed": data[:-1] + b"?", "cut": data[:40], "other image": png(32, 32)}[damage])
    error = refused(file, renderer_of(policy))
    assert error.startswith(f"{file} line ") and "turn 1" in error and str(path) in error
    assert ("does not exist" if damage == "missing" else "has changed since it was recorded") in error


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": []}, "line 2: turn 1: The episode's list of images is not that of its ids"),
        (
            {"images": [{"hash": "../../x", "start": 0, "end": 1}]},
            "The episode's list of images is not that of its ids",
        ),
        ({"images": [{"hash": 3, "start": "0", "end": None}]}, "The episode's list of images is not that of its ids"),
        ({"action_ids": [image_token_id("0" * 13, 0)] * 2}, "line 2: turn 1 has sampled ids that are not tokens"),
        (
            {"context_ids": [-(1 << 70)], "images": [{"hash": f"{(1 << 70) - 1 >> 14:x}", "start": 0, "end": 1}]},
            "exist",
        ),
    ],
)
def test_damaged_ids_of_images_are_named(
    tmp_path: Path, played: Path, policy: LoadedModel, changes: dict[str, Any], message: str
) -> None:
    file = copy_rows(played, tmp_path)
    change_turn(file, **changes)
    error = refused(file, renderer_of(policy))
    assert error.startswith(f"{file} line 2") and message in error


def test_placeholder_of_images_is_not_a_token(tmp_path: Path, played: Path, policy: LoadedModel) -> None:
    assert policy.images is not None
    file = copy_rows(played, tmp_path)
    ids = change_turn(file)["action_ids"]
    change_turn(file, action_ids=[policy.images.placeholder_id, *ids[1:]])
    assert "line 2: turn 1 has ids that are not tokens" in refused(file, renderer_of(policy))


def test_image_that_cannot_be_decoded_is_named(tmp_path: Path, played: Path, policy: LoadedModel) -> None:
    """A file with the right hash that is not an image."""
    file = copy_rows(played, tmp_path)
    key = image_hash(b"not a PNG")
    (tmp_path / "images" / f"{key}.png").write_bytes(b"not a PNG")
    change_turn(file, context_ids=[1, image_token_id(key, 0)], images=[{"hash": key, "start": 1, "end": 2}])
    assert f"line 2: turn 1: The image {tmp_path}/images/{key}.png cannot be shown" in refused(
        file, renderer_of(policy)
    )


def test_other_models_are_refused(tmp_path: Path, played: Path, policy: LoadedModel) -> None:
    text_only = Renderer(policy.tokenizer, policy.stop_ids)
    assert "line 1: turn 1: The episode has images, and the model reads text only" in refused(played, text_only)
    processor = VISION_MODELS["llava"]()[1]
    placeholder = processor.tokenizer.convert_tokens_to_ids("<image>")
    other = Renderer(policy.tokenizer, policy.stop_ids, images=ImageProcessor(processor, placeholder))
    assert "has 16 ids, and not the 9 that this model's processor gives it" in refused(played, other)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model__name": "tiny", "env__params__observation": "text"}, "the model reads text only"),
        ({**AWAC, "engine": "vllm", "engine__urls": ["http://a"]}, "engine vllm .* reads text only"),
    ],
)
def test_run_that_cannot_see_stored_images_is_refused(
    tmp_path: Path, played: Path, policy: LoadedModel, settings: dict[str, Any], message: str
) -> None:
    config = offline(tmp_path, [played], "awr", **settings)
    renderer = renderer_of(policy) if "engine" in settings else Renderer(policy.tokenizer)
    with pytest.raises(UserError, match=rf"line 1.* has images, and {message}"):
        fill_replay(open_replay(tmp_path / "replay", 10), config, renderer, 100_000, lambda note: None)


def test_damaged_image_leaves_no_run(tmp_path: Path, played: Path) -> None:
    file = copy_rows(played, tmp_path)
    (image,) = change_turn(file)["images"]
    (tmp_path / "images" / f"{image['hash']}.png").write_bytes(png(32, 32))
    with pytest.raises(UserError, match="has changed since it was recorded"):
        train(offline(tmp_path, [file], "awr"), console=quiet())
    assert not (tmp_path / "run").exists()


def test_export_keeps_images_and_is_read_back(
    tmp_path: Path, played: Path, policy: LoadedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = [each.trajectory for each in read(played, renderer_of(policy))]
    assert main(["data", "export", str(played), "--to", str(tmp_path / "dataset")]) == 0
    assert files_in(tmp_path / "dataset" / "images") == shown_by(whole)
    assert [each.trajectory for each in read(tmp_path / "dataset", renderer_of(policy))] == whole
    assert (found := inspect_data(str(tmp_path / "dataset"), "training")).images == len(shown_by(whole))
    assert found.missing_images == 0
    next(iter((tmp_path / "dataset" / "images").iterdir())).unlink()
    capsys.readouterr()
    assert main(["data", "inspect", str(tmp_path / "dataset")]) == 0
    assert f"{len(shown_by(whole))}, 1 of them missing" in capsys.readouterr().out


def test_export_without_an_image_is_refused(tmp_path: Path, played: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = shutil.copytree(played, tmp_path / "run")
    (image,) = json.loads((run / "trajectories" / "step_000001.jsonl").read_text().splitlines()[0])["turns"][0][
        "images"
    ]
    (run / "images" / f"{image['hash']}.png").unlink()
    assert main(["data", "export", str(run), "--to", str(tmp_path / "dataset")]) == 2
    assert f"step_000001.jsonl line 1: The image {run}/images/{image['hash']}.png" in capsys.readouterr().err
    assert not (tmp_path / "dataset").exists()


def test_exported_images_survive_parquet(tmp_path: Path, played: Path, policy: LoadedModel) -> None:
    read_json = pytest.importorskip("pyarrow.json").read_json
    assert main(["data", "export", str(played), "--to", str(tmp_path / "dataset")]) == 0
    table = read_json(tmp_path / "dataset" / "data" / "train.jsonl")
    (tmp_path / "dataset" / "data" / "train.jsonl").unlink()
    pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "dataset" / "train.parquet")
    whole = [each.trajectory for each in read(played, renderer_of(policy))]
    assert [each.trajectory for each in read(tmp_path / "dataset", renderer_of(policy))] == whole


def conversation(url: str, answer: str, reward: float) -> dict[str, Any]:
    """Return a row with a conversation about one image."""
    shown = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    messages = [{"role": "user", "content": shown}, {"role": "assistant", "content": answer}]
    return {"messages": messages, "reward": reward}


def write_conversations(folder: Path) -> Path:
    """Write two conversations about the same image, in a data URL and in a file."""
    (folder / "pictures").mkdir()
    (folder / "pictures" / "lake.png").write_bytes(png(32, 32))
    url = f"data:image/png;base64,{base64.b64encode(png(32, 32)).decode()}"
    rows = [conversation(url, "ice", 1.0), conversation("pictures/lake.png", "water", 0.0)]
    (folder / "talks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "talks.jsonl"


def test_conversations_with_images_are_trained_on(tmp_path: Path, policy: LoadedModel) -> None:
    file, key = write_conversations(tmp_path), image_hash(png(32, 32))
    first, second = (each.trajectory for each in read(file, renderer_of(policy)))
    assert [(span.hash, span.end - span.start) for span in first.turns[0].images] == [(key, 16)]
    assert first.turns[0].context_ids == second.turns[0].context_ids and first.task == second.task
    assert find_images(first.turns[0].context_ids) == first.turns[0].images
    train(offline(tmp_path, [file], "dpo"), console=quiet())
    assert key in files_in(tmp_path / "run" / "images")
    text_only = Renderer(policy.tokenizer, policy.stop_ids)
    assert f"{file} line 1 has images, and the model reads text only" in refused(file, text_only)


def test_sft_trains_on_conversations_with_images(tmp_path: Path) -> None:
    given = {"model__name": "tiny_vlm", "rollout__max_tokens": 512, "eval__every": 0}
    file = write_conversations(tmp_path)
    assert sft(small(tmp_path, **given, env__kind="none", sft__demos=str(file)), console=quiet())["finished"]
    assert files_in(tmp_path / "run" / "images") == {image_hash(png(32, 32))}


def test_sft_trains_on_a_run_with_images(tmp_path: Path, played: Path, policy: LoadedModel) -> None:
    run = shutil.copytree(played, tmp_path / "played")
    config = small(tmp_path, **LAKE, sft__demos=str(run))
    build_demos = partial(
        build_demonstrations, config, build_environment_mix(config.env, config.agent), show=lambda done, total: None
    )
    loaded = load_model(str(played / RUN_BASE), attn_implementation=ATTENTION)
    assert loaded.images is not None
    samples = build_demos(loaded=loaded, renderer=renderer_of(policy))
    assert len(samples) == 4
    logprobs = torch.cat(_score(loaded.model, samples, 4096))
    assert torch.allclose(logprobs, torch.cat([each.sampler_logprobs[each.mask] for each in samples]), atol=1e-4)
    for image in (run / "images").iterdir():
        image.write_bytes(png(32, 32))
    with pytest.raises(UserError, match=r"step_000001.jsonl line 1: turn 1: The image .* has changed"):
        build_demos(loaded=loaded, renderer=renderer_of(policy))
