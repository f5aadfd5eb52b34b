"""Processes that form process groups of one to four ranks, and what each rank does in the tests of sharded learners."""

import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from learners_for_tests import (
    check_learner_contract,
    constrain_first_turn,
    estimate_of,
    learn,
    random_groups,
    settings_of,
)
from models_for_tests import random_model
from processes_for_tests import CONTEXT, start_process
from turnwise.config.schema import Config
from turnwise.core.errors import DivergedError
from turnwise.core.learner import Needs
from turnwise.core.samples import TrainBatch
from turnwise.core.trajectory import Group, Turn
from turnwise.data.packing import micro_batches, pack_train
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.loading.load import load_model, resolve_device
from turnwise.models.loading.lora import LoraPart, LoraSettings, add_lora
from turnwise.models.loading.tiny import tiny_tokenizer
from turnwise.models.sharding import local_of
from turnwise.models.vision.architectures import attention_by_part, equip_model
from turnwise.models.vision.encoder import freeze_vision, image_encoder
from turnwise.run.build_learner import build_learner, build_sharded_learner, update_settings
from turnwise.training.learner import LocalLearner
from turnwise.training.sharded import ShardedLearner
from turnwise.training.update import train_samples
from vision_models_for_tests import VISION_MODELS, png

HANG_S = 600


class Ranks:
    """Processes, each started when it is first needed; a call uses the first n of them as a group of n ranks."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._calls = folder, 0
        self._pipes: list[Any] = []
        self._processes: list[Any] = []

    def run(self, count: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Return the results of `function(rank, *args)` on each of `count` ranks; raise if one fails or hangs."""
        while len(self._processes) < count:
            ours, theirs = CONTEXT.Pipe()
            self._pipes.append(ours)
            self._processes.append(start_process(_serve, theirs, daemon=True))
        self._calls += 1
        store = self._folder / f"store{self._calls}"
        for rank, pipe in enumerate(self._pipes[:count]):
            pipe.send((rank, count, str(store), function, args))
        results = []
        for rank, pipe in enumerate(self._pipes[:count]):
            assert pipe.poll(HANG_S), f"rank {rank} of {count} hangs"
            result, failure = pipe.recv()
            if failure:
                self.stop()
            assert not failure, f"rank {rank} of {count} failed:\n{failure}"
            results.append(result)
        return results

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


def _serve(pipe: Any) -> None:
    torch.set_num_threads(1)
    while True:
        try:
            rank, count, store, function, args = pipe.recv()
        except EOFError:
            return
        try:
            dist.init_process_group(
                "gloo", init_method=f"file://{store}", rank=rank, world_size=count, timeout=timedelta(seconds=HANG_S)
            )
            result = function(rank, *args)
            dist.barrier()  # so that none leaves while another still connects
            dist.destroy_process_group()
        except Exception:
            pipe.send((None, traceback.format_exc()))
            return
        pipe.send((result, ""))


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "head critic": ("head", {"critic__warmup_steps": 1, "train__mini_batch": 5}),
    "trunk critic": ("trunk", {"train__optimizer": "muon", "train__optimizer__learning_rate": 1e-3}),
    "lora": ("no critic", {"lora__rank": 2, "train__recompute": "on", "algo__old_logprobs": "learner"}),
    "plain": ("no critic", {}),
    "bfloat16": ("trunk", {"model__dtype": "bfloat16"}),
    "offload": ("no critic", {"train__optimizer_state": "host"}),
    "frozen vision": ("head", {"model__name": "llava"}),
    "vision": ("trunk", {"model__name": "tiny_vlm", "model__train_vision": True, "algo__old_logprobs": "learner"}),
    "vision lora": (
        "no critic",
        {"model__name": "tiny_vlm", "lora__rank": 2, "model__train_vision": True, "algo__old_logprobs": "learner"},
    ),
}
"""Name -> critic and settings of a learner. All have a KL reference and samples with shared prompts.

With a model that reads images, one of three groups shows some, so that some micro-batches have none.
"""


def config_of(case: str) -> Config:
    critic, changes = CASES[case]
    rates = {"train__learning_rate": 1e-3, "critic__learning_rate": 1e-3, "train__max_grad_norm": 0.5}
    return settings_of(critic, **{**rates, **changes})


def model_of(config: Config) -> Any:
    dtype = torch.bfloat16 if config.model.dtype == "bfloat16" else torch.float32
    if config.model.name == "tiny_vlm":
        train_vision = bool(config.model.train_vision)
        model = load_model("tiny_vlm", attn_implementation=ATTENTION, train_vision=train_vision).model
    elif config.model.name == "llava":  # its vision tower needs what transformers registers in each process
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model, processor = VISION_MODELS["llava"]()
        model.set_attn_implementation(attention_by_part(ATTENTION))
        equip_model(model.eval(), processor)
        freeze_vision(model)
    else:
        model = random_model("qwen2", ATTENTION, dtype, layers=2)  # the time grows with the number of tensors
    if config.lora.rank:
        part: LoraPart = "both" if config.model.train_vision else "language"
        add_lora(model, "base", LoraSettings(rank=config.lora.rank, alpha=4.0, targets=(), seed=0, part=part))
        with torch.no_grad():  # peft starts with zeros, for which half of the adapter gets no gradient
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter += 0.1
    return model


def local_learner(config: Config) -> LocalLearner:
    return build_learner(config.algo, config.critic, config.train, model_of(config))


def sharded_learner(rank: int, config: Config) -> ShardedLearner:
    return build_sharded_learner(
        config.algo,
        config.critic,
        config.train,
        model_of(config) if rank == 0 else None,
        device=resolve_device(config.model.device),
        compiles=config.system.compile,
    )


def check_sharded_learner(rank: int, folder: Path) -> None:
    """Put a sharded learner through the contract, on all ranks in step."""
    config = config_of("plain")
    if rank == 0:
        folder.mkdir()
    check_learner_contract(lambda: sharded_learner(rank, config), config, folder)


def steps_of(learner: LocalLearner, config: Config, first: int, last: int) -> list[dict[str, float]]:
    """Take training steps of several micro-batches; return their metrics."""
    return [learn(learner, groups_of(learner, step), config, step=step, micro_tokens=60) for step in range(first, last)]


def groups_of(learner: LocalLearner, seed: int) -> list[Group]:
    """Return three groups. First turns of the third have a constraint.

    If the model reads images, turns of the second begin with the same ones in all steps.
    """
    first, second, third = random_groups(seed, groups=3)
    third = replace(third, trajectories=tuple(constrain_first_turn(each) for each in third.trajectories))
    encoder = image_encoder(learner.model)
    if encoder is None:
        return [first, second, third]

    def show(turn: Turn, number: int) -> Turn:
        assert encoder is not None
        return replace(turn, context_ids=(*encoder.processor.ids(png(16, 24, seed=number)), *turn.context_ids))

    shown = tuple(
        replace(each, turns=tuple(show(turn, number) for number, turn in enumerate(each.turns)))
        for each in second.trajectories
    )
    return [first, replace(second, trajectories=shown), third]


Trained = tuple[list[dict[str, float]], int, dict[str, torch.Tensor], dict[str, torch.Tensor]]


def result_of(learner: LocalLearner, metrics: list[dict[str, float]]) -> Trained:
    """Return metrics, skipped steps, weights and the rest of the state, whole and by name."""
    weights = {name: each.detach().clone() for name, each in learner.weights().named_parameters()}
    tensors = learner.state_dict()["tensors"]
    return metrics, learner.skipped_steps, weights, {name: _whole(each) for name, each in tensors.items()}


def _whole(tensor: Any) -> torch.Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def train_steps(rank: int, case: str, steps: int) -> Trained:
    config = config_of(case)
    learner = sharded_learner(rank, config)
    return result_of(learner, steps_of(learner, config, 0, steps))


def train_and_save(rank: int, case: str, folder: Path, continued_steps: int) -> tuple[Trained, Trained]:
    """Train one step, save, and continue; return both results."""
    return train_and_save_with(sharded_learner(rank, config_of(case)), case, folder, continued_steps)


def train_and_save_with(
    learner: LocalLearner, case: str, folder: Path, continued_steps: int
) -> tuple[Trained, Trained]:
    config = config_of(case)
    first = steps_of(learner, config, 0, 1)
    learner.check_finite("now")
    learner.save_model(folder, tiny_tokenizer())
    learner.save_state(folder)
    return result_of(learner, first), result_of(learner, steps_of(learner, config, 1, 1 + continued_steps))


def save_untrained(rank: int, case: str, folder: Path) -> Trained:
    learner = sharded_learner(rank, config_of(case))
    learner.save_model(folder, tiny_tokenizer())
    return result_of(learner, [])


def load_and_train(rank: int, case: str, folder: Path, continued_steps: int) -> tuple[Trained, Trained]:
    """Load what `train_and_save` wrote, and continue as it did."""
    return load_and_train_with(sharded_learner(rank, config_of(case)), rank, case, folder, continued_steps)


def load_and_train_with(
    learner: LocalLearner, rank: int, case: str, folder: Path, continued_steps: int
) -> tuple[Trained, Trained]:
    config = config_of(case)
    loaded = load_model(str(folder), dtype=config.model.dtype, attn_implementation=ATTENTION) if rank == 0 else None
    learner.load_weights(None if loaded is None else loaded.model)  # type: ignore[arg-type]
    learner.load_state(folder, skipped_steps=0)
    return result_of(learner, []), result_of(learner, steps_of(learner, config, 1, 1 + continued_steps))


def train_batches(learner: LocalLearner, config: Config) -> list[TrainBatch]:
    settings = update_settings(config.algo, config.critic, config.train, config.seed)
    estimated = estimate_of(random_groups(groups=3), learner, config)
    assert estimated is not None
    samples = train_samples(estimated, set(range(9)), settings)
    parts = micro_batches([each.sample for each in samples], 60)
    return [pack_train([samples[index] for index in part]) for part in parts]


def measure(learner: LocalLearner, config: Config) -> dict[str, Any]:
    """Return the results of methods that training steps do not call, and of a step with a non-finite gradient."""
    learner.begin_step(replace(learner.settings, step=1))  # after the critic's warm-up
    batches = train_batches(learner, config)
    norms = [learner.gradient_norm(batches, term) for term in ("task", "entropy", "kl")]
    tokens = learner.forward_backward(batches, tokens=True)
    step = learner.step()
    before = {name: each.detach().clone() for name, each in learner.weights().named_parameters()}
    broken = replace(batches[1], advantages=torch.full_like(batches[1].advantages, float("nan")))
    without_tokens = learner.forward_backward([batches[0], broken, *batches[2:]])
    learner.step()
    after = learner.weights().named_parameters()
    return {
        "ranks": learner.ranks,
        "norms": norms,
        "step": step,
        "names": sorted(without_tokens[0]),
        "value_head": learner.value_head(),
        "tokens": [{name: each.double() for name, each in found.items()} for found in tokens],
        "skipped": learner.skipped_steps,
        "unchanged": all(torch.equal(before[name], each) for name, each in after),
        "empty": (learner.forward_backward([]), learner.score([], Needs(policy_logprobs=True))),
    }


def count_features(rank: int, case: str) -> list[int]:
    """Return how many features of images the policy computes in two equal steps, and after its weights are loaded."""
    config = config_of(case)
    learner = sharded_learner(rank, config)
    encoder = image_encoder(learner.model)
    assert encoder is not None
    computed, encode = Counter[int](), encoder._encode

    def count(trunk: Any, keys: list[str]) -> list[torch.Tensor]:
        computed[len(found)] += len(keys)
        return encode(trunk, keys)

    found = list[int]()
    encoder._encode = count  # type: ignore[method-assign]
    for number in range(3):
        if number == 2:
            learner.load_weights(model_of(config) if rank == 0 else None)
        learn(learner, groups_of(learner, 0), config, step=number, micro_tokens=60)
        parts = [{name for name, _ in learner.named_weights(trained=trained)} for trained in (True, False)]
        assert parts[0] | parts[1] == {name for name, _ in learner.weights().named_parameters()}
        assert not parts[0] & parts[1]
        found.append(computed[number])
    return found


def measure_sharded(rank: int, case: str) -> dict[str, Any]:
    config = config_of(case)
    return measure(sharded_learner(rank, config), config)


def collect_errors(rank: int, case: str, folder: Path) -> list[str]:
    """Return the errors of a rank when rank 0 alone cannot write, when weights do not fit, and when a shard is bad."""
    learner = sharded_learner(rank, config_of(case))
    found = []

    def expect(function: Callable[[], Any]) -> None:
        try:
            function()
        except (OSError, ValueError, DivergedError) as error:
            found.append(f"{type(error).__name__}: {error}")

    (folder / "file").touch()
    expect(lambda: learner.save_model(folder / "file" / "model", tiny_tokenizer()))
    expect(lambda: learner.load_weights(torch.nn.Linear(2, 2)))
    if rank == 1:
        local_of(next(learner.model.parameters())).data[0] = float("inf")
    expect(lambda: learner.check_finite("now"))
    expect(lambda: learner.optimizer.check_finite("then"))
    return found


def break_optimizer_state(rank: int, case: str, folder: Path) -> tuple[int, str]:
    """Return the number of skipped steps after a state is loaded, and the error of a moment that is not finite."""
    config = config_of(case)
    learner = sharded_learner(rank, config)
    steps_of(learner, config, 0, 1)
    learner.save_state(folder)
    learner.load_state(folder, skipped_steps=7)
    tensors = learner.optimizer.tensors()
    if rank == 1:
        moment = next(each for name, each in tensors.items() if name.endswith("exp_avg"))
        local_of(moment).flatten()[0] = float("nan")
    try:
        learner.check_finite("now")
    except DivergedError as error:
        return learner.skipped_steps, str(error)
    return learner.skipped_steps, ""
