"""Settings of the vLLM engine, and a training run through a fake server."""

import json
from pathlib import Path

import pytest
import torch

from runs_for_tests import learnt, quiet, small
from turnwise.config.load import build
from turnwise.core.errors import UserError
from turnwise.engine.engines import Native
from turnwise.models.loading.tiny import tiny_tokenizer
from turnwise.run.api import evaluate
from turnwise.run.check_images import check_engine_reads_images
from turnwise.run.check_settings import check_settings_fit
from turnwise.run.configure import configure
from turnwise.run.environment_mix import build_environment_mix
from turnwise.run.resources import memory_request
from turnwise.run.train import train
from turnwise.run.validate import check_run, check_settings
from vllm_server_for_tests import fake_vllm

SERVER = ("engine.urls", "http://localhost:8000")
KIND = ("engine", "vllm")


def test_other_engines_get_a_default_correction() -> None:
    corrected = configure("bandit", overrides=[KIND, SERVER]).algo
    assert (corrected.correction.kind, corrected.old_logprobs) == ("truncated", "learner")
    chosen = configure("bandit", overrides=[KIND, SERVER, ("algo.correction", "none")]).algo
    assert (chosen.correction.kind, chosen.old_logprobs) == ("none", "sampler")
    assert configure("bandit", overrides=[("engine", "native")]).algo.correction.kind == "none"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([SERVER], "engine.urls has no effect with engine native"),
        ([("engine.tensor_parallel", "2")], "engine.tensor_parallel has no effect with engine native"),
        ([KIND, SERVER, ("engine.gpu_memory_utilization", "0.2")], "has no effect with engine.urls"),
        ([KIND, SERVER, ("engine.tensor_parallel", "2")], "engine.tensor_parallel has no effect with engine.urls"),
        ([KIND, SERVER, ("selfplay.opponent", "past")], "engine.urls names servers that hold one"),
        (
            [KIND, SERVER, ("selfplay.opponent", "self")],
            "self with selfplay.opponent.ladder_games 0",
        ),
    ],
)
def test_settings_that_do_not_fit_the_engine_are_refused(settings: list[tuple[str, str]], message: str) -> None:
    target = "tic_tac_toe" if any("selfplay" in key for key, _ in settings) else "bandit"
    with pytest.raises(UserError) as raised:
        check_settings(configure(target, overrides=settings), [key for key, _ in settings])
    assert message in str(raised.value)


def test_images_are_refused_by_engines_that_read_text_only() -> None:
    pixels = ("env.params.observation", "image")
    config = configure("frozen_lake", overrides=[KIND, SERVER, pixels])
    refusal = r"engine vllm with these settings reads text only\. Choose engine native or vllm without engine\.urls"
    with pytest.raises(UserError, match=refusal):
        check_run(config, build_environment_mix(config.env, config.agent))
    in_process = configure("frozen_lake", overrides=[KIND, pixels])
    check_engine_reads_images(in_process.engine, build_environment_mix(in_process.env, in_process.agent))


def test_engine_of_its_own_is_planned_with_a_copy_of_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Native, "shares_weights", False)
    request = memory_request(build({}, [("engine", "native")]))
    assert (request.engine_share, request.weights_copy) == (None, True)
    monkeypatch.undo()
    assert not memory_request(build({}, [])).weights_copy


def test_unknown_engine_is_an_error() -> None:
    with pytest.raises(UserError, match=r'Unknown engine "vlm": did you mean "vllm"'):
        build({}, [("engine", "vlm")])


def test_engine_on_several_gpus_needs_them_for_itself() -> None:
    several = [KIND, ("engine.tensor_parallel", "2"), ("cluster.engines", "1"), ("cluster.learners", "1")]
    with pytest.raises(UserError) as raised:
        check_settings_fit(configure("bandit", overrides=several))
    assert str(raised.value) == (
        "engine.tensor_parallel 2 splits the model over as many GPUs, and cluster.placement colocated puts an engine "
        "and a learner on one GPU. Set cluster.placement disaggregated, or set engine.tensor_parallel to 1."
    )
    check_settings_fit(configure("bandit", overrides=[*several, ("cluster.placement", "disaggregated")]))


def test_memory_plan_leaves_the_engine_its_share() -> None:
    assert memory_request(configure("bandit")).engine_share is None
    assert memory_request(configure("bandit", overrides=[KIND])).engine_share == 0.4
    assert memory_request(configure("bandit", overrides=[KIND, SERVER])).engine_share == 0.0


def test_run_trains_on_the_tokens_of_a_server(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    answers = [[*tokenizer.encode(f"<answer>{arm}</answer>"), tokenizer.eos_token_id] for arm in ("A", "B")]

    def sample(body: dict[str, object]) -> list[int]:
        seed = body["sampling_params"]["seed"]  # type: ignore[index]
        return list(answers[seed % 2])

    with fake_vllm(sample) as server:
        config = small(
            tmp_path,
            engine="vllm",
            engine__urls=(server.url,),
            algo__advantage="grpo",
            algo__kl_coef=0.0,
            eval__every=0,
            eval__episodes=1,
        )
        assert train(config, console=quiet())["finished"]
        versions = [body["weight_version"] for body in server.bodies("/finish_weight_update")]
        assert versions == ["0", "1", "2", "3"]
        saved = learnt(tmp_path / "run")
        assert all(torch.equal(tensor, saved[name]) for name, tensor in server.weights.items())
    for step in (1, 2, 3):
        lines = (tmp_path / f"run/trajectories/step_{step:06d}.jsonl").read_text().splitlines()
        turns = [turn for line in lines for turn in json.loads(line)["turns"]]
        assert {tuple(turn["action_ids"]) for turn in turns} <= {tuple(answer) for answer in answers}
        assert {turn["policy_version"] for turn in turns} == {step - 1}
    assert evaluate(str(tmp_path / "run"), episodes=2, out=tmp_path / "eval", quiet=True), "without the server"
