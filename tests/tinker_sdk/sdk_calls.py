"""All calls of Tinker's SDK on a server: prints what they return as JSON. Runs with .venv-tinker."""

import json
import sys
import urllib.request
from typing import Any

import tinker
import torch
from tinker import types

IDS = [5, 6, 7, 8, 9, 10, 11, 12]
ADAM = types.AdamParams(learning_rate=1e-3)


def datum(loss: str = "cross_entropy") -> types.Datum:
    count = len(IDS) - 1
    inputs: dict[str, Any] = {"target_tokens": IDS[1:]}
    if loss == "cross_entropy":
        inputs["weights"] = [0.0, 0.0] + [1.0] * (count - 2)
    else:
        inputs |= {"logprobs": [-2.0] * count, "advantages": [0.5] * count}
    if loss == "gspo":
        inputs["sequence_ratio_mask"] = [1.0] * count
    return types.Datum(model_input=types.ModelInput.from_ints(IDS[:-1]), loss_fn_inputs=inputs)


def prompt(ids: list[int] = IDS) -> types.ModelInput:
    return types.ModelInput.from_ints(ids)


def fails(call: Any) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def train(client: Any, report: dict[str, Any]) -> None:
    scored = client.forward([datum()], "cross_entropy").result()
    report["forward"] = {"loss": scored.metrics["loss:sum"], "logprobs": scored.loss_fn_outputs[0]["logprobs"].data}
    for loss in ("cross_entropy", "importance_sampling", "ppo", "cispo", "dro", "gspo"):
        report[loss] = client.forward_backward([datum(loss), datum(loss)], loss).result().metrics["loss:sum"]
    report["optim_step"] = client.optim_step(ADAM).result().metrics

    def squared(data: Any, logprobs: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
        loss = (logprobs[0] ** 2).sum()
        return loss, {"squared": float(loss)}

    report["custom"] = client.forward_backward_custom([datum()], squared).result().metrics
    client.optim_step(ADAM).result()
    ids, weights = torch.tensor([[1, 2], [3, 4]]), torch.tensor([[0.5, 0.5], [0.0, 1.0]])
    wide = types.Datum(
        model_input=prompt([5, 6]),
        loss_fn_inputs={
            "target_tokens": types.TensorData.from_torch(ids),
            "weights": types.TensorData.from_torch_sparse(weights),
        },
    )
    output = client.forward([wide], "cross_entropy").result().loss_fn_outputs[0]["logprobs"]
    report["targets"] = output.shape


def sample(client: Any, scored: list[float], report: dict[str, Any]) -> None:
    params = types.SamplingParams(max_tokens=6, seed=3)
    first, again = (client.sample(prompt(), 3, params).result() for _ in range(2))
    report["samples"] = [sequence.tokens for sequence in first.sequences]
    report["seeded"] = report["samples"] == [sequence.tokens for sequence in again.sequences]
    report["sequence_ids"] = len({sequence.sequence_id for sequence in first.sequences})
    token = first.sequences[0].tokens[1]
    ended = client.sample(prompt(), 1, types.SamplingParams(max_tokens=6, seed=3, stop=[token])).result()
    report["stopped"] = [ended.sequences[0].stop_reason, ended.sequences[0].tokens == report["samples"][0][:2]]
    full = client.sample(
        prompt(), 1, types.SamplingParams(max_tokens=2), include_prompt_logprobs=True, topk_prompt_logprobs=3,
        topk_sample_logprobs=2,
    ).result()  # fmt: skip
    report["prompt_logprobs"] = full.prompt_logprobs
    report["topk_shapes"] = [
        list(full.topk_prompt_logprobs_np.logprobs.shape),
        list(full.sequences[0].topk_logprobs_np.logprobs.shape),
    ]
    report["last_n"] = client.compute_logprobs(prompt(), prompt_logprobs_last_n=2).result()
    wanted = torch.full((len(IDS) - 1, 1), -1)
    wanted[-1, 0] = IDS[-1]
    for name, target in {
        "dense": types.TensorData.from_torch(wanted),
        "sparse": types.TensorData.from_torch_sparse(wanted, pad_value=-1),
    }.items():
        answer = client.sample(prompt(), 1, types.SamplingParams(max_tokens=1), target_prompt_logprobs=target).result()
        report[f"target_{name}"] = answer.target_prompt_logprobs.to_torch().flatten().tolist()


def save(service: Any, client: Any, report: dict[str, Any]) -> None:
    state = client.save_state("first").result().path
    report["state_path"] = state.partition("/weights/")[2]
    copy = service.create_training_client_from_state_with_optimizer(state)
    for trained in (client, copy):
        trained.forward_backward([datum()], "cross_entropy").result()
        trained.optim_step(ADAM).result()
    losses = [trained.forward([datum()], "cross_entropy").result().metrics["loss:sum"] for trained in (client, copy)]
    report["continued"] = losses[0] == losses[1]
    path = client.save_weights_for_sampler("final").result().path
    sampler = service.create_sampling_client(model_path=path)
    report["base_model"] = sampler.get_base_model()
    seeded = types.SamplingParams(max_tokens=4, seed=1)
    one = sampler.sample(prompt(), 1, seeded).result().sequences[0]
    own = client.save_weights_and_get_sampling_client().sample(prompt(), 1, seeded).result().sequences[0]
    report["same_weights"] = one.tokens == own.tokens and one.logprobs == own.logprobs
    base = service.create_sampling_client(base_model="tiny").sample(prompt(), 1, seeded).result().sequences[0]
    report["base_differs"] = base.logprobs != own.logprobs
    rest = tinker.RestClient()
    report["checkpoints"] = sorted(
        checkpoint.checkpoint_id for checkpoint in rest.list_checkpoints(client.model_id).result().checkpoints
    )
    external = client.save_weights_external("out").result().path
    urls = rest.get_external_weights_urls(external).result().urls
    with urllib.request.urlopen(urls["adapter_config.json"]) as reply:
        report["external"] = [sorted(urls), json.load(reply)["r"]]
    run = rest.get_training_run(client.model_id).result()
    report["run"] = [run.base_model, run.lora_rank, run.last_checkpoint.checkpoint_id, run.user_metadata]
    report["runs"] = len(rest.list_training_runs().result().training_runs)
    rest.delete_checkpoint_from_tinker_path(state).result()
    report["left"] = len(rest.list_checkpoints(client.model_id).result().checkpoints)


def refuse(service: Any, client: Any, report: dict[str, Any]) -> None:
    report["errors"] = {
        "stable_reinforce": fails(lambda: client.forward_backward([datum("ppo")], "stable_reinforce").result()),
        "inputs": fails(lambda: client.forward_backward([datum()], "ppo").result()),
        "setting": fails(lambda: client.forward_backward([datum("ppo")], "ppo", {"clip": 1.0}).result()),
        "base_model": fails(lambda: service.create_lora_training_client(base_model="llama")),
        "rank": fails(lambda: service.create_lora_training_client(base_model="tiny", rank=0)),
        "path": fails(lambda: service.create_sampling_client(model_path="tinker://no/weights/x")),
    }
    report["after_errors"] = client.optim_step(ADAM).result().metrics["skipped"]


def main() -> None:
    report: dict[str, Any] = {}
    with tinker.ServiceClient() as service:
        report["models"] = [model.model_name for model in service.get_server_capabilities().supported_models]
        client = service.create_lora_training_client(base_model="tiny", rank=4, seed=1, user_metadata={"a": "b"})
        info = client.get_info()
        report["info"] = [info.is_lora, info.lora_rank, info.model_data.model_name]
        report["text"] = client.get_tokenizer().decode([65, 66])
        fresh = client.forward([datum()], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].data
        sample(client.save_weights_and_get_sampling_client(), fresh, report)
        report["fresh"] = fresh
        train(client, report)
        save(service, client, report)
        refuse(service, client, report)
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
