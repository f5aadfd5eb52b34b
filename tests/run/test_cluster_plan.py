"""`turnwise cluster plan`: memory adds up, the plan and its command for 7B and 70B shapes, errors in one line."""

import json
import re
import shlex
from pathlib import Path

import pytest

from turnwise.cli.main import main
from turnwise.cluster.gpu_memory import fit_engine, fit_learner, peak, usable
from turnwise.cluster.plan import Division, find_divisions, plan_cluster
from turnwise.cluster.rates import GPUS, MeasuredRates, read_rates
from turnwise.core.errors import UserError
from turnwise.models.memory.estimate import CUDA_CONTEXT
from turnwise.run.cluster_report import build_job, report_cluster, report_memory
from turnwise.run.configure import configure

SEVEN_B = [("model.name", "qwen2.5-7b")]
SHAPE_70B = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}


@pytest.fixture
def folder_70b(tmp_path: Path) -> Path:
    (tmp_path / "llama-70b").mkdir()
    (tmp_path / "llama-70b" / "config.json").write_text(json.dumps(SHAPE_70B))
    return tmp_path / "llama-70b"


def job_of(*overrides: tuple[str, str]):
    return build_job(configure("math_code", overrides=overrides), MeasuredRates())


def test_learner_memory_is_divided_by_the_ranks() -> None:
    job = job_of(*SEVEN_B)
    by_ranks = {}
    for ranks in (4, 8):
        found = fit_learner(job.estimate, job.request, ranks, usable(GPUS["H200"].memory))
        assert found is not None
        by_ranks[ranks] = {item.name: item.update for item in found.items}
    trained = job.estimate.shape.trained
    sharded = ("trained parameters (float32)", "optimizer moments", "gradients (float32)")
    assert sum(by_ranks[4][name] for name in sharded) == pytest.approx(trained * 16 / 4, rel=1e-6)
    assert sum(by_ranks[8][name] for name in sharded) == pytest.approx(trained * 16 / 8, rel=1e-6)
    assert by_ranks[4]["CUDA context"] == by_ranks[8]["CUDA context"] == CUDA_CONTEXT


@pytest.mark.parametrize(("state", "weights"), [("device", 2), ("host", 0)])
def test_single_rank_has_the_weights_of_a_local_learner(state: str, weights: int) -> None:
    job = job_of(*SEVEN_B, ("train.optimizer_state", state))
    found = fit_learner(job.estimate, job.request, 1, 10**12)
    assert found is not None
    sizes = {item.name: item.update for item in found.items}
    assert sizes.get("trained parameters (model's dtype)", 0) == weights * job.estimate.shape.trained


def test_learner_recomputes_activations_only_if_memory_is_short() -> None:
    job = job_of(*SEVEN_B)
    ample = fit_learner(job.estimate, job.request, 64, usable(GPUS["H200"].memory))
    tight = fit_learner(job.estimate, job.request, 8, usable(GPUS["L40S"].memory))
    assert ample is not None and not ample.recompute
    assert tight is not None and tight.recompute
    assert fit_learner(job.estimate, job.request, 2, usable(GPUS["L4"].memory)) is None


def test_engine_memory_is_divided_by_tensor_parallel() -> None:
    job = job_of(*SEVEN_B)
    items = []
    for split in (1, 2):
        found = fit_engine(
            job.estimate, job.request, tensor_parallel=split, slots=32, episode_tokens=500, available=1 << 40
        )
        assert found is not None and found.slots == 32
        items.append({item.name: item.rollout for item in found.items})
    for name in ("engine's weights", "KV cache"):
        assert items[0][name] == pytest.approx(2 * items[1][name], rel=1e-6)


def test_engine_runs_fewer_episodes_if_the_cache_is_small() -> None:
    job = job_of(*SEVEN_B)
    page = job.estimate.kv_cache(job.request.page_size)
    needed = CUDA_CONTEXT + job.estimate.parameters + job.estimate.graphs(job.request.prefill_tokens, 32)
    found = fit_engine(
        job.estimate, job.request, tensor_parallel=1, slots=32, episode_tokens=64, available=needed + 20 * page
    )
    assert found is not None and found.slots == 19
    assert peak(found.items) <= needed + 20 * page
    less = needed + job.request.pages_per_slot * page
    assert fit_engine(job.estimate, job.request, tensor_parallel=1, slots=32, episode_tokens=64, available=less) is None


@pytest.mark.parametrize("gpus", [8, 64])
def test_every_division_fits_and_uses_at_most_the_gpus(gpus: int) -> None:
    gpu = GPUS["H100"]
    divisions = list(find_divisions(job_of(*SEVEN_B, ("engine", "vllm")), gpu, gpus))
    assert {each.layout.colocated for each in divisions} == {True, False}
    for each in divisions:
        assert each.gpus <= gpus
        shared = each.engine.items if each.layout.colocated else ()
        assert peak(each.learner.items + shared) <= usable(gpu.memory)
        assert peak(each.engine.items) <= usable(gpu.memory)


def test_plan_cluster_puts_the_fastest_first() -> None:
    job = job_of(*SEVEN_B, ("rollout.groups", "4"), ("train.mini_batch", "64"))
    found = plan_cluster(job, GPUS["H100"], 8, steps=2)
    times = [each.prediction.step_s for each in found]
    assert times == sorted(times) and len(found) > 2
    assert {each.division.layout.max_staleness for each in found} == {0, 1}
    assert all(0 <= each.gpu_idle <= 1 for each in found)


def test_engines_of_70b_are_split_over_gpus(folder_70b: Path) -> None:
    job = job_of(("model.name", str(folder_70b)), ("engine", "vllm"))
    divisions: list[Division] = list(find_divisions(job, GPUS["H100"], 64))
    assert divisions and all(each.tensor_parallel >= 2 and not each.layout.colocated for each in divisions)
    with pytest.raises(UserError, match=r"70\.6B parameters does not fit 8 x H100.*use \d+ GPUs.*lora\.rank 16"):
        plan_cluster(job, GPUS["H100"], 8)


def test_cluster_plan_command_configures_a_run() -> None:
    overrides = [*SEVEN_B, ("rollout.groups", "4"), ("rollout.in_flight", "64"), ("rollout.max_staleness", "2")]
    config = configure("math_code", overrides=overrides)
    report = report_cluster("math_code", config, overrides, gpus=8, gpu_name="h100")
    words = shlex.split(report.command)
    start = words.index("train")
    assert words[start + 1] == "math_code"
    pairs = list(zip(words[start + 2 :: 2], words[start + 3 :: 2], strict=True))
    assert len({key for key, _ in pairs}) == len(pairs)
    planned = configure("math_code", overrides=[(key.removeprefix("--"), value) for key, value in pairs])
    assert planned.cluster.learners + planned.cluster.engines >= 8
    assert planned.model.name == "qwen2.5-7b" and planned.rollout.groups == 4
    total = next(row for row in report.memory.rows if row[0] == "total")
    parts = [row for row in report.memory.rows if row[0] not in ("total", "available")]
    for column in (1, 2):
        assert sum(float(row[column] or 0) for row in parts) == pytest.approx(float(total[column]), abs=0.1)


@pytest.mark.parametrize(
    ("workers", "row", "cores"),
    [(0, ("environments", "beside their engines", ""), 2), (3, ("environments", "3 workers", "3 CPU cores"), 5)],
)
def test_report_counts_cpus_of_environment_workers(workers: int, row: tuple[str, ...], cores: int) -> None:
    overrides = [("rollout.groups", "2"), ("train.mini_batch", "8"), ("cluster.env_workers", str(workers))]
    config = configure("frozen_lake", overrides=overrides)
    report = report_cluster("frozen_lake", config, overrides, gpus=2, gpu_name="h100")
    assert row in report.roles.rows
    assert f"CPU cores of all actors: {cores}." in report.notes
    assert f"--cluster.env_workers {workers}" in report.command


def test_cluster_plan_prints_tables_and_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    typed = "cluster plan frozen_lake --gpus 2 --rollout.groups 2 --train.mini_batch 8"
    code = main(typed.split())
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    for part in ("on 2 x H100", "learner", "engines", "predicted step", "estimates", "--cluster.learners"):
        assert part in out
    assert re.search(r"  0\.0\d+ s ", out) and "  0.0 s " not in out


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("cluster plan math_code --gpus 8 --gpu H1000", "Unknown GPU"),
        ("cluster plan math_code --gpus 1", "at least 2 GPUs"),
        ("cluster plan math_code --gpus 2 --gpu L4 --model.name qwen2.5-7b", "does not fit 2 x L4"),
        ("cluster plan math_code --gpus 8 --rates missing.toml", "does not exist"),
        ("cluster plan math_cod --gpus 8", "math_code"),
        ("cluster plan math_code", "--gpus"),
    ],
)
def test_cluster_plan_reports_bad_input_in_one_line(
    capsys: pytest.CaptureFixture[str], typed: str, message: str
) -> None:
    code = main(typed.split())
    out, err = capsys.readouterr()
    assert code == 2 and out == "" and err.count("\n") == 1
    assert message in err


def test_rates_file_replaces_estimates(tmp_path: Path) -> None:
    file = tmp_path / "rates.toml"
    file.write_text(
        "[engine]\ntokens_per_s = {1 = 50, 64 = 800}\nprefill_tokens_per_s = 9000\n"
        "[learner]\nseconds_per_token = 1e-4\nseconds_per_step = 0\ntransfer_s = 0\n"
        "[episodes]\nturns = 2\naction_tokens = 50\nobservation_tokens = 0\nprompt_tokens = 0\n"
    )
    overrides = [*SEVEN_B, ("rollout.groups", "1"), ("train.mini_batch", "16")]
    job = build_job(configure("math_code", overrides=overrides), read_rates(file))
    shared = next(each for each in plan_cluster(job, GPUS["H100"], 4, steps=2) if each.division.layout.colocated)
    # 16 episodes on 4 replicas: 4 turns at a time, at (50 + 3/63 x 750) tokens/s; then 1,600 tokens on 4 ranks
    assert shared.prediction.step_s == pytest.approx(400 / (50 + 3 / 63 * 750) + 1600 * 1e-4 / 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[engine]\nspeed = 3\n", r"engine\.speed.*Tables: \[engine\] tokens_per_s"),
        ("[engine]\ntokens_per_s = {1 = -5}\n", r"engine\.tokens_per_s\.1"),
        ("[engine]\ntokens_per_s = {x = 5}\n", r"engine\.tokens_per_s\.x"),
        ("[learner\n", "is not valid TOML"),
    ],
)
def test_rates_file_errors_name_the_key(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "rates.toml"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        read_rates(file)


def test_memory_of_a_layout_names_the_gpus_that_it_fits() -> None:
    settings = [*SEVEN_B, ("cluster.learners", "8"), ("cluster.engines", "8")]
    shared = report_memory(configure("math_code", overrides=settings))
    separate = report_memory(configure("math_code", overrides=[*settings, ("cluster.placement", "disaggregated")]))
    assert shared.headers[2:4] == ("rolling out, GiB", "updating, GiB")
    assert separate.headers[2:4] == ("learner rank, GiB", "engine, GiB")
    for table in (shared, separate):
        rows = {row[0]: row[2:] for row in table.rows}
        assert list(rows) == list(GPUS)
        assert rows["L4"][0] == "does not fit"
        assert all(0 < float(size) < GPUS["H200"].gib for size in rows["H200"][:2])


def test_dry_run_prints_memory_per_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray")
    settings = ["--cluster.engines", "2", "--cluster.learners", "2", "--cluster.address", "10.0.0.1:6379"]
    assert main(["train", "frozen_lake", *settings, "--dry-run"]) == 0
    assert "updating, GiB" in capsys.readouterr().out
    assert main(["train", "frozen_lake", "--dry-run"]) == 0
    assert "updating, GiB" not in capsys.readouterr().out
