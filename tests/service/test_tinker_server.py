"""The training service over raw HTTP: order and repetition of requests, tenants, hostile bodies, restarts of models."""

from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tinker_for_tests import (
    KEY,
    OTHER_KEY,
    PROTOBUF,
    RawClient,
    datum,
    encode_request,
    read_logprobs,
    serving_tinker,
)
from turnwise.models.loading.load import load_model
from turnwise.record.run_folder import RunFolder
from turnwise.service.tinker.messages import MESSAGES
from turnwise.viewer.runs import RunList
from turnwise.viewer.viewed_folder import ViewedFolder

DATA = [datum([5, 6, 7, 8, 9, 10]), datum([20, 21, 22])]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Any:
    keys = {"one": KEY, "two": OTHER_KEY}
    with serving_tinker(tmp_path_factory.mktemp("tinker"), keys) as served:
        yield served


@pytest.fixture(scope="module")
def session(client: RawClient) -> str:
    return client.open_session()


def final_weights(client: RawClient, folder: Path, model: str, seq: int) -> dict[str, Any]:
    """Save a model's weights and return all tensors, the optimizer's too."""
    path = client.result("save_weights", {"model_id": model, "seq_id": seq, "path": "end"})["path"]
    assert path == f"tinker://{model}/weights/end"
    return load_file(folder / model.replace(":", "-") / "checkpoints" / "weights" / "end" / "state.safetensors")


def equal(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return first.keys() == second.keys() and all(bool((first[name] == second[name]).all()) for name in first)


def test_health_needs_no_key_and_all_else_does(client: RawClient) -> None:
    stranger = RawClient(client.url, "tml-wrong-key-0003")
    assert stranger.call("healthz", method="GET") == {"status": "ok"}
    for path, method in (("client/config", "POST"), ("get_server_capabilities", "GET"), ("retrieve_future", "POST")):
        refused = stranger.send(path, {} if method == "POST" else None, method=method)
        assert refused.status_code == 401 and "TINKER_API_KEY" in refused.json()["detail"]


def test_pages_of_other_sites_are_refused(client: RawClient) -> None:
    for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
        assert client.send("client/config", {}, headers=headers).status_code == 403


def test_telemetry_is_accepted(client: RawClient) -> None:
    assert client.call("telemetry", {"events": []}) == {"status": "accepted"}


def test_calls_that_are_not_offered_are_named(client: RawClient) -> None:
    for path in ("create_custom_loss", "copy_weights", "no_such_call"):
        refused = client.send(path, {})
        assert refused.status_code == 404 and f"{path} is not offered by turnwise" in refused.json()["detail"]


def test_requests_are_idempotent(client: RawClient, session: str) -> None:
    model = client.create_model(session, 1)
    assert client.create_model(session, 1) == model
    body = encode_request(model, 1, DATA, "cross_entropy")
    promises = [client.call("forward_backward", body, headers=PROTOBUF) for _ in range(3)]
    assert promises[0] == promises[1] == promises[2]
    first, again = (client.wait(promises[0]).content for _ in range(2))
    assert first == again
    norm = client.step(model, 2)["metrics"]["grad_norm"]
    twice = client.create_model(session, 2)
    for seq in (1, 2):
        client.forward_backward(twice, seq, DATA, "cross_entropy")
    assert client.step(twice, 3)["metrics"]["grad_norm"] == pytest.approx(2 * norm, rel=1e-4)


def test_requests_out_of_order_are_refused(client: RawClient, session: str) -> None:
    model = client.create_model(session, 3)
    client.forward_backward(model, 4, DATA, "cross_entropy")
    for seq, message in ((3, "came after 4"), (4, "was another request"), (0, "from 1")):
        body = encode_request(model, seq, DATA[:1], "cross_entropy")
        refused = client.send("forward_backward", body, headers=PROTOBUF)
        assert refused.status_code in (400, 422) and message in refused.json()["detail"]


def test_unknown_request_is_gone(client: RawClient) -> None:
    gone = client.send("retrieve_future", {"request_id": "no:such:1"})
    assert gone.status_code == 410 and "send it again" in gone.json()["detail"]


def test_sessions_end(client: RawClient) -> None:
    session = client.open_session()
    assert client.call("session_heartbeat", {"session_id": session}) == {"type": "session_heartbeat"}
    client.call(f"sessions/{session}/finish", {"reason": {"type": "success"}})
    assert client.send("session_heartbeat", {"session_id": session}).status_code == 410
    assert client.send("session_heartbeat", {"session_id": "none"}).status_code == 404


def test_unloaded_model_takes_no_more_requests(client: RawClient, session: str) -> None:
    model = client.create_model(session, 4)
    assert client.result("unload_model", {"model_id": model}) == {"type": "unload_model", "model_id": model}
    refused = client.send("optim_step", {"model_id": model, "seq_id": 9, "adam_params": {}})
    assert refused.status_code == 400 and "was unloaded" in refused.json()["detail"]


def test_tenants_do_not_see_each_other(client: RawClient, session: str) -> None:
    model = client.create_model(session, 5)
    sampler = client.sampler(model, 1, number=7)
    path = client.result("save_weights", {"model_id": model, "seq_id": 2, "path": "mine"})["path"]
    promise = client.call("optim_step", {"model_id": model, "seq_id": 3, "adam_params": {}})
    other = RawClient(client.url, OTHER_KEY)
    own = other.create_model(other.open_session())
    tries: list[tuple[str, Any, dict[str, Any]]] = [
        ("session_heartbeat", {"session_id": session}, {}),
        ("create_model", {"session_id": session, "model_seq_id": 9, "base_model": "tiny"}, {}),
        ("get_info", {"model_id": model}, {}),
        ("forward_backward", encode_request(model, 4, DATA, "cross_entropy"), {"headers": PROTOBUF}),
        ("optim_step", {"model_id": model, "seq_id": 4, "adam_params": {}}, {}),
        ("weights_info", {"tinker_path": path}, {}),
        ("retrieve_future", {"request_id": promise["request_id"]}, {}),
        ("unload_model", {"model_id": model}, {}),
        ("join_sampling_session", {"sampling_session_id": sampler}, {}),
        (f"samplers/{sampler}", None, {"method": "GET"}),
        (f"training_runs/{model}/checkpoints", None, {"method": "GET"}),
        (f"training_runs/{model}/checkpoints/weights/mine", None, {"method": "DELETE"}),
    ]
    for call, body, options in tries:
        assert other.send(call, body, **options).status_code in (404, 410), call
    stolen = other.result("load_weights", {"model_id": own, "seq_id": 1, "path": path, "optimizer": False})
    assert "There are no weights" in stolen["error"]
    assert client.wait(promise).json()["metrics"]["skipped"] == 0


BAD_TENSORS = {
    "tokens": (lambda d: setattr(d.model_input[0].encoded_text, "tokens", b"abc"), "send int32 ids"),
    "vocabulary": (lambda d: setattr(d.model_input[0].encoded_text, "tokens", b"\xff\xff\xff\x7f"), "token id 2147"),
    "empty": (lambda d: setattr(d.model_input[0].encoded_text, "tokens", b""), "has 0 tokens"),
    "image": (lambda d: d.model_input.add().image.SetInParent(), "not text is not offered"),
    "dtype": (lambda d: setattr(d.loss_fn_inputs["weights"], "dtype", 4), "has the dtype 4"),
    "bytes": (lambda d: setattr(d.loss_fn_inputs["weights"], "dense", b"abc"), "do not fit its shape"),
    "rank": (lambda d: d.loss_fn_inputs["weights"].shape.extend([1, 1]), "has the shape"),
    "negative": (lambda d: d.loss_fn_inputs["weights"].shape.__setitem__(0, -5), "has the shape"),
    "huge": (lambda d: d.loss_fn_inputs["weights"].shape.append(2**40), "targets at each position"),
    "nan": (lambda d: setattr(d.loss_fn_inputs["weights"], "dense", np.full(5, np.nan, "<f4").tobytes()), "not finite"),
    "targets": (lambda d: d.loss_fn_inputs.pop("target_tokens"), "no target_tokens"),
    "float targets": (lambda d: setattr(d.loss_fn_inputs["target_tokens"], "dtype", 1), "do not fit its shape"),
    "sparse": (lambda d: setattr(d.loss_fn_inputs["weights"].sparse_csr, "values", b"1234"), "not a sparse matrix"),
}  # fmt: skip


def test_hostile_tensors_fail_with_one_sentence(client: RawClient, session: str) -> None:
    model = client.create_model(session, 6)
    for seq, (name, (damage, message)) in enumerate(BAD_TENSORS.items(), start=1):
        body = encode_request(model, seq, [datum([5, 6, 7, 8, 9, 10], weights=np.ones(5))], "cross_entropy")
        request = MESSAGES["ForwardBackwardRequest"].FromString(body)
        damage(request.data[0])  # type: ignore[no-untyped-call]
        failed = client.wait(client.call("forward_backward", request.SerializeToString(), headers=PROTOBUF)).json()
        assert failed["category"] == "user" and message in failed["error"], (name, failed)
    assert client.step(model, 100)["metrics"] == {"grad_norm": 0.0, "learning_rate": 1e-4, "skipped": 0.0}


def test_hostile_bodies_are_refused(client: RawClient, session: str) -> None:
    model = client.create_model(session, 7)
    tries: list[tuple[str, Any, int]] = [
        ("forward_backward", b"\xff\xff\xff", 400),
        ("optim_step", {"model_id": model, "seq_id": 1, "adam_params": {"learning_rate": -1}}, 422),
        ("optim_step", b'{"model_id": "m", "seq_id": 1, "adam_params": {"learning_rate": NaN}}', 400),
        ("optim_step", {"model_id": model, "seq_id": 2**40}, 422),
        ("optim_step", [1, 2], 400),
        ("create_model", {"session_id": session, "model_seq_id": 8, "base_model": "tiny", "surprise": 1}, 422),
        (
            "create_model",
            {"session_id": session, "model_seq_id": 8, "base_model": "tiny", "user_metadata": {"a": "b" * 70_000}},
            400,
        ),
        ("create_sampling_session", {"session_id": session, "sampling_session_seq_id": 1, "model_path": "../x"}, 400),
        ("asample", {"prompt": {"chunks": []}, "sampling_params": {"temperature": -1}}, 422),
    ]
    for path, body, status in tries:
        headers = PROTOBUF if path == "forward_backward" else {}
        refused = client.send(path, body, headers=headers)
        assert refused.status_code == status and refused.json()["detail"], (path, refused.text)
    packed = client.send("forward_backward", b"x", headers={**PROTOBUF, "Content-Encoding": "zstd"})
    assert packed.status_code == 415
    wrong = client.result("save_weights", {"model_id": model, "seq_id": 3, "path": "../../etc"})
    assert "cannot name weights" in wrong["error"]


def test_hostile_samples_fail_alone(client: RawClient, session: str) -> None:
    body = {"session_id": session, "sampling_session_seq_id": 30, "base_model": "tiny"}
    sampler = client.call("create_sampling_session", body)["sampling_session_id"]
    matrix = {"data": [99999], "dtype": "int64", "shape": [1, 1]}
    failures = [
        client.sample(sampler, 1, [5, 99999]),
        client.sample(sampler, 2, []),
        client.sample(sampler, 3, [5] * 9000),
        client.sample(sampler, 4, [5, 6], prompt_alt_tokens_k=2),
        client.sample(sampler, 5, [5, 6], max_tokens=1, target_prompt_logprobs=matrix),
        client.sample(sampler, 6, [5, 6], prompt_logprobs=True, prompt_logprobs_last_n=2),
    ]
    messages = ["99999", "has 0 tokens", "9000 tokens", "not offered", "token id 99999", "last_n is 2"]
    for failure, message in zip(failures, messages, strict=True):
        assert failure["category"] == "user" and message in failure["error"]
    assert len(client.sample(sampler, 7, [5, 6], max_tokens=3, stop=[]).sequences[0].tokens) == 12


def test_diverged_weights_are_reported_until_a_checkpoint_is_loaded(client: RawClient, session: str) -> None:
    model = client.create_model(session, 10)
    path = client.result("save_weights", {"model_id": model, "seq_id": 1, "path": "good"})["path"]
    client.forward_backward(model, 2, DATA, "cross_entropy")
    assert "not finite" in client.step(model, 3, learning_rate=1e39)["error"]
    assert "load a checkpoint" in client.forward_backward(model, 4, DATA, "cross_entropy")["error"]
    loaded = client.result("load_weights", {"model_id": model, "seq_id": 5, "path": path, "optimizer": True})
    assert loaded == {"type": "load_weights", "path": path, "model_id": model}
    assert client.forward_backward(model, 6, DATA, "cross_entropy").metrics["loss:sum"] > 0


def test_model_is_created_from_saved_weights(client: RawClient, session: str) -> None:
    model = client.create_model(session, 11, rank=3, train_attn=False)
    train(client, model, 1, 2)
    path = client.result("save_weights", {"model_id": model, "seq_id": 5, "path": "state"})["path"]
    body = {"session_id": session, "model_seq_id": 12, "path": path, "optimizer": True}
    copy = client.result("load_weights", body)["model_id"]
    assert copy == f"{session}:train:12" and client.call("get_info", {"model_id": copy})["lora_rank"] == 3
    assert train(client, copy, 1, 2) == train(client, model, 6, 2)
    info = client.call("weights_info", {"tinker_path": path})
    assert info["lora_rank"] == 3 and info["train_attn"] is False and info["train_mlp"] is True
    for wrong, message in (
        (body | {"weights_access_token": "x"}, "weights_access_token is not offered"),
        (body | {"optimizer_config": {"type": "dimuon"}}, "dimuon is not offered"),
        ({"path": path, "optimizer": True}, "needs model_id and seq_id"),
    ):
        refused = client.send("load_weights", wrong)
        assert refused.status_code == 400 and message in refused.json()["detail"]
    save = {"model_id": model, "seq_id": 20, "sampling_session_seq_id": 40, "kind": "inflight"}
    assert "kind inflight is not offered" in client.result("save_weights_for_sampler", save)["error"]


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
def test_external_weights_are_a_peft_adapter(client: RawClient, session: str, tmp_path: Path) -> None:
    model = client.create_model(session, 13)
    train(client, model, 1, 2)
    path = client.result("save_weights_external", {"model_id": model, "seq_id": 5, "path": "out"})["path"]
    route = f"training_runs/{model}/checkpoints/external_weights/out/external_weights_urls"
    urls = client.call(route, method="GET")["urls"]
    for name, url in urls.items():
        (tmp_path / name).write_bytes(httpx2.get(url, trust_env=False).content)
        assert httpx2.get(url[:-1] + "x", trust_env=False).status_code == 403
    ids, inputs = DATA[0]
    scored = read_logprobs(client.forward_backward(model, 6, [(ids, inputs)], "cross_entropy", forward_only=True))
    loaded = load_model(str(tmp_path)).model
    with torch.no_grad():
        logprobs = loaded(torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = logprobs.gather(1, torch.tensor(inputs["target_tokens"])[:, None])[:, 0]
    assert scored == pytest.approx(expected.numpy(), abs=1e-4)
    load = {"model_id": model, "seq_id": 7, "path": path, "optimizer": False}
    assert "is for other programs" in client.result("load_weights", load)["error"]


def test_full_weights_that_do_not_fit_are_refused(
    client: RawClient, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnwise.service.tinker.backend.available_memory", lambda: 1 << 20)
    body = {"session_id": session, "model_seq_id": 14, "base_model": "tiny"}
    assert "0.0 GiB are available: train an adapter" in client.result("create_model", body)["error"]


def test_sampler_engines_are_dropped_and_built_again(
    client: RawClient, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnwise.service.tinker.samplers.MAX_SLOTS", 1)
    samplers = [client.sampler(client.create_model(session, 20 + rank, rank), 1, 20 + rank) for rank in (2, 5)]
    drawn = [
        client.sample(sampler, seq, [5, 6, 7], max_tokens=6, seed=2).sequences[0].tokens
        for seq in (1, 2)
        for sampler in samplers
    ]
    assert drawn[:2] == drawn[2:]


def train(client: RawClient, model: str, first: int, steps: int) -> list[bytes]:
    """Take optimizer steps and return the log-probabilities of each."""
    outputs = []
    for step in range(steps):
        seq = first + 2 * step
        outputs.append(read_logprobs(client.forward_backward(model, seq, DATA, "cross_entropy")).tobytes())
        client.step(model, seq + 1, learning_rate=1e-2)
    return outputs


def test_tenant_beside_others_gets_the_bits_of_one_alone(tmp_path: Path) -> None:
    def sampled(client: RawClient, sampler: str, seq: int) -> list[tuple[bytes, bytes]]:
        response = client.sample(sampler, seq, [5, 6, 7], num_samples=3, max_tokens=8, seed=4)
        return [(sequence.tokens, sequence.logprobs) for sequence in response.sequences]

    with serving_tinker(tmp_path / "alone") as client:
        model = client.create_model(client.open_session())
        outputs = train(client, model, 1, 3)
        samples = sampled(client, client.sampler(model, 7), 1)
        alone = final_weights(client, tmp_path / "alone", model, 8)
    with serving_tinker(tmp_path / "beside", max_models=2) as client:
        session = client.open_session()
        other = client.create_model(session, 8, rank=16, train_mlp=False)
        beside = client.create_model(session, 9)
        third = client.create_model(session, 10, rank=None)
        mixed = []
        for step in range(3):
            train(client, other, 1 + 2 * step, 1)
            client.forward_backward(third, 2 * step + 1, DATA, "cross_entropy")
            mixed += train(client, beside, 1 + 2 * step, 1)
            client.step(third, 2 * step + 2, learning_rate=1e-3)
            sampled(
                client,
                client.sampler(other, 7, 3)
                if step == 2
                else client.call(
                    "create_sampling_session",
                    {"session_id": session, "sampling_session_seq_id": step, "base_model": "tiny"},
                )["sampling_session_id"],
                1,
            )
        assert mixed == outputs
        assert sampled(client, client.sampler(beside, 7, 4), 1) == samples
        assert equal(final_weights(client, tmp_path / "beside", beside, 8), alone)


def test_full_weights_are_trained_and_sampled(tmp_path: Path) -> None:
    with serving_tinker(tmp_path) as client:
        session = client.open_session()
        model = client.create_model(session, rank=None)
        info = client.call("get_info", {"model_id": model})
        assert info["is_lora"] is False and info["lora_rank"] is None
        before = train(client, model, 1, 2)
        assert before[0] != before[1]
        own = client.sample(client.sampler(model, 5), 1, [5, 6, 7], max_tokens=4, seed=1).sequences[0]
        scored = client.forward_backward(
            model, 6, [datum([5, 6, 7, *np.frombuffer(own.tokens, "<i4")])], "cross_entropy"
        )
        sampled = np.frombuffer(own.logprobs, "<f4")
        assert read_logprobs(scored)[2:] == pytest.approx(sampled, abs=1e-5)


def test_optimizer_steps_are_in_a_run_folder(tmp_path: Path) -> None:
    with serving_tinker(tmp_path) as client:
        model = client.create_model(client.open_session())
        train(client, model, 1, 2)
    run = RunFolder.open(tmp_path / model.replace(":", "-"))
    rows = run.read_metrics()
    assert [row["step"] for row in rows] == [1, 2] and all(row["train/grad_norm"] > 0 for row in rows)
    assert rows[1]["train/policy_loss"] < rows[0]["train/policy_loss"]
    (row,) = RunList(ViewedFolder(tmp_path)).rows()
    assert row["model"] == "tiny" and row["step"] == 2
