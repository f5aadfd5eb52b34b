"""Tinker's own SDK as the other side of the training service.

Its cookbook needs an older transformers, so both have a Python environment of their own (.venv-tinker, `make test`).
"""

import json
import math
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pages_for_tests import ROOT, blocks_of
from tinker_for_tests import KEY, serving_tinker

HERE = Path(__file__).parent
PYTHON = HERE.parents[1] / ".venv-tinker" / "bin" / "python"


@pytest.fixture(scope="module", autouse=True)
def sdk(optional_part: Callable[..., NoReturn]) -> None:
    if not PYTHON.exists():
        optional_part("Tinker's SDK is not installed: make test installs it into .venv-tinker")


def run_sdk(script: str, url: str, *arguments: str, **variables: str) -> str:
    """Run a script with the SDK and return what it prints."""
    known = {"TINKER_BASE_URL": url, "TINKER_API_KEY": KEY, "TINKER_TELEMETRY": "0", "HF_HUB_OFFLINE": "1"}
    child = subprocess.run(
        (str(PYTHON), str(HERE / script), *arguments),
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | known | variables,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert child.returncode == 0, (child.stdout + child.stderr)[-4000:]
    return child.stdout


@pytest.fixture(scope="module")
def report(sdk: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with serving_tinker(tmp_path_factory.mktemp("tinker")) as client:
        lines = run_sdk("sdk_calls.py", client.url).splitlines()
    printed: dict[str, Any] = json.loads(lines[-1])
    return printed


def test_sdk_reads_capabilities_and_tokenizer(report: dict[str, Any]) -> None:
    assert report["models"] == ["tiny"] and report["info"] == [True, 4, "tiny"] and report["base_model"] == "tiny"
    assert report["text"] == "AB"


def test_sdk_samples_by_seed_and_stops_at_tokens(report: dict[str, Any]) -> None:
    assert report["seeded"] and len(report["samples"]) == 3 and report["sequence_ids"] == 3
    assert report["samples"][0] != report["samples"][1]
    assert report["stopped"] == ["stop", True]


def test_sdk_gets_prompt_logprobs_equal_to_forward(report: dict[str, Any]) -> None:
    missing, *scored = report["prompt_logprobs"]
    assert missing is None and scored == pytest.approx(report["fresh"], abs=1e-5)
    assert report["last_n"][:-2] == [None] * 6 and report["last_n"][-2:] == pytest.approx(scored[-2:], abs=1e-6)
    assert report["topk_shapes"] == [[8, 3], [2, 2]] and report["targets"] == [2, 2]
    for layout in ("dense", "sparse"):
        assert report[f"target_{layout}"] == pytest.approx([0.0] * 6 + scored[-1:], abs=1e-6)


def test_sdk_computes_every_loss(report: dict[str, Any]) -> None:
    logprobs = report["fresh"]
    assert report["forward"]["loss"] == pytest.approx(-sum(logprobs[2:]), rel=1e-5)
    assert report["cross_entropy"] == pytest.approx(-2 * sum(logprobs[2:]), rel=1e-5)
    ratios = [math.exp(logprob + 2.0) for logprob in logprobs]
    assert report["importance_sampling"] == pytest.approx(-sum(ratios), rel=1e-5)
    assert report["ppo"] == pytest.approx(-sum(min(ratio, 1.2) for ratio in ratios), rel=1e-5)
    clipped = [min(max(ratio, 0.8), 1.2) for ratio in ratios]
    pairs = list(zip(clipped, logprobs, strict=True))
    assert report["cispo"] == pytest.approx(-sum(weight * logprob for weight, logprob in pairs), rel=1e-5)
    assert report["custom"]["squared"] > 0 and report["custom"]["loss:sum"] == report["custom"]["squared"]
    assert report["optim_step"]["grad_norm"] > 0 and report["optim_step"]["skipped"] == 0


def test_sdk_saves_and_continues_from_state(report: dict[str, Any]) -> None:
    assert report["state_path"] == "first" and report["continued"]
    assert report["same_weights"] and report["base_differs"]
    assert report["checkpoints"] == ["sampler_weights/final", "weights/first"] and report["left"] == 2
    assert report["external"] == [["adapter_config.json", "adapter_model.safetensors"], 4]
    assert report["run"] == ["tiny", 4, "weights/first", {"a": "b"}] and report["runs"] == 2


def test_sdk_raises_the_servers_errors(report: dict[str, Any]) -> None:
    errors = report["errors"]
    assert "stable_reinforce is not offered by turnwise" in errors["stable_reinforce"]
    assert "has no logprobs, which ppo needs" in errors["inputs"]
    assert 'has no setting "clip"' in errors["setting"]
    assert 'base model "llama" is not served: use "tiny"' in errors["base_model"]
    assert "rank is 0" in errors["rank"] and "There is no model no" in errors["path"]
    assert report["after_errors"] == 0


def test_loop_of_the_page_learns_digits(tmp_path: Path) -> None:
    (block,) = (block for block in blocks_of(ROOT / "docs" / "tinker.md") if block.language == "python")
    script = tmp_path / "loop.py"
    script.write_text(block.text)
    with serving_tinker(tmp_path / "served") as client:
        lines = run_sdk(str(script), client.url).splitlines()
    shares = [float(line.partition("digits")[2].partition("%")[0]) for line in lines]
    assert len(shares) == 20 and shares[0] < 20 and shares[-1] > 95
