"""Settings of the vLLM engine, and a training run through a fake server."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from runs_for_tests import learnt, quiet, small
from turnwise.config.load import build
from turnwise.config.resources import EngineConfig
from turnwise.core.errors import UserError
from turnwise.engine.engines import ENGINES
from turnwise.models.loading.tiny import tiny_tokenizer
from turnwise.run.api import evaluate
from turnwise.run.build import check_engine_reads_images
from turnwise.run.configure import configure
from turnwise.run.environment_mix import build_environment_mix
from turnwise.run.resources import memory_request
from turnwise.run.train import train
from turnwise.run.validate import check_run, check_settings
from vllm_server_for_tests import fake_vllm

SERVER = ("engine.urls", "http://localhost:8000")
KIND = ("engine.kind", "vllm")


def test_other_engines_get_a_default_correction() -> None:
    corrected = configure("bandit", overrides=[KIND, SERVER]).algo
    assert (corrected.correction.kind, corrected.old_logprobs) == ("truncated", "learner")
    chosen = configure("bandit", overrides=[KIND, SERVER, ("algo.correction", "none")]).algo
    assert (chosen.correction.kind, chosen.old_logprobs) == ("none", "sampler")
    assert configure("bandit", overrides=[("engine.kind", "native")]).algo.correction.kind == "none"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([SERVER], "engine.urls has no effect with engine.kind native"),
        ([KIND, SERVER, ("system.decode_steps", "2")], "system.decode_steps has no effect with engine.kind vllm"),
        ([KIND, SERVER, ("system.cache_share", "0.2")], "system.cache_share has no effect with engine.kind vllm"),
        ([KIND, SERVER, ("engine.tensor_parallel", "2")], "engine.tensor_parallel has no effect with engine.urls"),
        ([KIND, SERVER, ("selfplay.opponent", "past")], "engine.urls names servers that hold one"),
        ([KIND, SERVER, ("selfplay.opponent", "self")], "choose selfplay.opponent self with selfplay.ladder_games 0"),
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
    refusal = r"engine\.kind vllm with engine\.urls reads text only\. Choose engine\.kind native"
    with pytest.raises(UserError, match=refusal):
        check_run(config, build_environment_mix(config))
    in_process = configure("frozen_lake", overrides=[KIND, pixels])
    check_engine_reads_images(in_process, build_environment_mix(in_process))


def test_engine_of_its_own_is_planned_with_a_copy_of_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "other", replace(ENGINES["native"], shares_weights=False))
    request = memory_request(build({}, [("engine.kind", "other")]))
    assert (request.engine_share, request.weights_copy) == (None, True)
    assert not memory_request(build({}, [])).weights_copy


def test_every_setting_of_engines_is_read_by_one() -> None:
    read = {name for kind in ENGINES.values() for name in kind.reads}
    assert {f"engine.{name}" for name in EngineConfig.model_fields} - {"engine.kind"} <= read


def test_unknown_engine_is_an_error_wherever_it_is_looked_up() -> None:
    with pytest.raises(UserError, match=r'Unknown engine\.kind "vlm": did you mean "vllm"'):
        memory_request(build({}, [("engine.kind", "vlm")]))


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
            engine__kind="vllm",
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
