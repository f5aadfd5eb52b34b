"""The vLLM engine against a fake server, and against replicas that die. `tests/vllm` runs the real vLLM."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from turnwise.core.constraint import Constraint, ConstraintError
from turnwise.core.errors import InfrastructureFailure, Outage, UserError
from turnwise.core.protocols import Completion, Sampling
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Stop
from turnwise.engine.vllm.engine import VllmEngine
from turnwise.engine.vllm.requests import ReplicaFailure, TokenChunk, TokenRequest
from turnwise.engine.vllm.server import ServerReplica
from turnwise.engine.vllm.weights import FilePublisher, PublishedWeights
from vllm_server_for_tests import FakeVllm, fake_vllm

END = 1
LETTERS = " .abcdefghij"
SAMPLING = Sampling(max_tokens=8, temperature=0.7)


def decode(ids: list[int]) -> str:
    return "".join(LETTERS[each] for each in ids)


def says(*tokens: int) -> Callable[[dict[str, Any]], list[int]]:
    return lambda body: list(tokens)


def key(member: int = 0) -> EpisodeKey:
    return EpisodeKey(run_seed=0, round=0, task=Task(env="test", seed=4), member=member)


def engine_of(
    *servers: FakeVllm, model: torch.nn.Module | None = None, max_tokens: int = 64, vision: Collection[str] = ()
) -> VllmEngine:
    model = model or torch.nn.Linear(2, 2)
    replicas = [ServerReplica(server.url, max_tokens=max_tokens) for server in servers]
    return VllmEngine(model, replicas, FilePublisher(model, vision=vision), stop_ids=[END], decode=decode)


async def turn(engine: VllmEngine, sampling: Sampling = SAMPLING, member: int = 0) -> Completion:
    async with engine.open(key(member)) as session:
        return await session.generate([3, 4], sampling)


def run(scenario: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(scenario, 60))


def test_session_sends_its_whole_context_and_returns_exact_tokens() -> None:
    async def scenario(engine: VllmEngine) -> list[Completion]:
        async with engine.open(key()) as session:
            first = await session.generate([3, 4], SAMPLING)
            second = await session.generate([5], SAMPLING)
            third = await session.generate([6], Sampling(max_tokens=2, temperature=0.0), restart=True)
            assert session.sampling_s > 0
        return [first, second, third]

    with fake_vllm(says(8, 9, END, 10)) as server:
        engine = engine_of(server)
        first, second, third = run(scenario(engine))
        prompts = [body["token_ids"] for body in server.generated]
        seeds = [body["sampling_params"]["seed"] for body in server.generated]
    assert first == Completion(
        ids=(8, 9, END), logprobs=(-0.08, -0.09, -0.01), stop=Stop.EOS, temperature=0.7, policy_versions=(0, 0, 0)
    )
    assert (third.ids, third.stop, third.temperature) == ((8, 9), Stop.LENGTH, 1.0)
    assert prompts == [[3, 4], [3, 4, 8, 9, END, 5], [6]]
    assert len(set(seeds)) == 3, "turns of an episode draw different numbers"
    assert engine.stats().counts["sampled_tokens"] == 8
    assert engine.stats().active_s > 0
    assert second.ids == first.ids


def test_request_leaves_no_sampling_parameter_to_the_server() -> None:
    with fake_vllm(says(8, END)) as server:
        run(turn(engine_of(server), Sampling(max_tokens=5, temperature=0.5, top_p=0.9, top_k=3)))
        (body,) = server.generated
    params = body["sampling_params"]
    assert (params["temperature"], params["top_p"], params["top_k"], params["max_tokens"]) == (0.5, 0.9, 3, 5)
    assert (params["repetition_penalty"], params["min_p"], params["ignore_eos"]) == (1.0, 0.0, True)
    assert (params["stop_token_ids"], params["detokenize"], body["stream"]) == ([END], False, False)


def test_seed_depends_on_the_episode_alone() -> None:
    async def scenario(engine: VllmEngine) -> None:
        for member in (0, 1, 0):
            await turn(engine, member=member)

    with fake_vllm(says(8, END)) as server:
        run(scenario(engine_of(server)))
        first, other, again = (body["sampling_params"]["seed"] for body in server.generated)
    assert first == again != other
    assert 0 <= first < 2**63


def test_stop_string_ends_the_turn_and_the_request() -> None:
    with fake_vllm(says(2, 3, 4, 5, 6, 7)) as server:
        server.token_s = 0.02
        found = run(turn(engine_of(server), Sampling(max_tokens=6, stop=("bc", "no such text"))))
        (body,) = server.generated
        aborted = server.aborted
    assert (decode(list(found.ids)), found.stop) == ("abc", Stop.STRING)
    assert (len(found.logprobs), len(found.policy_versions)) == (3, 3)
    assert body["stream"]
    assert aborted == {f"generate-tokens-{body['request_id']}"}


def test_publish_sends_weights_and_labels_later_tokens() -> None:
    old, new = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

    async def scenario(engine: VllmEngine, server: FakeVllm) -> list[Completion]:
        found = [await turn(engine)]
        assert torch.equal(server.weights["weight"], old.weight)
        published = engine.stats().published_bytes
        await engine.publish(7, new)
        assert engine.stats().published_bytes == 2 * published > 0
        return [*found, await turn(engine)]

    with fake_vllm(says(8, END)) as server:
        before, after = run(scenario(engine_of(server, model=old), server))
        calls = [path for path, _ in server.requests if "generate" not in path]
        salts = [body["cache_salt"] for body in server.generated]
        assert torch.equal(server.weights["weight"], new.weight)
        assert server.bodies("/pause")[0]["query"] == "mode=keep&clear_cache=false"
        assert server.bodies("/reset_prefix_cache")[0]["query"] == "reset_running_requests=true"
    update = ["/pause", "/start_weight_update", "/update_weights", "/finish_weight_update", "/reset_prefix_cache"]
    assert calls == ["/init_weight_transfer_engine", *update, "/resume", *update, "/resume"]
    assert (before.policy_versions, after.policy_versions) == ((0, 0), (7, 7))
    assert salts[0] != salts[1]


def test_sessions_use_the_server_with_the_fewest() -> None:
    async def scenario(engine: VllmEngine) -> None:
        async with engine.open(key(0)) as first, engine.open(key(1)) as second:
            for session in (first, second, first, second):
                await session.generate([3], SAMPLING)

    with fake_vllm(says(8, END)) as one, fake_vllm(says(8, END)) as two:
        run(scenario(engine_of(one, two)))
        assert [[len(body["token_ids"]) for body in each.generated] for each in (one, two)] == [[1, 4], [1, 4]]


def test_server_that_dies_in_a_call_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(engine: VllmEngine, dying: FakeVllm) -> Completion:
        await engine.publish(3, torch.nn.Linear(2, 2))
        dying.dies_in_calls = True
        async with engine.open(key()) as session:
            found = await session.generate([3, 4], SAMPLING)
            await session.generate([5], SAMPLING)
        dying.forget()
        await engine.publish(4, torch.nn.Linear(2, 2))
        assert dying.version == "4", "a server that is back gets the next version"
        return found

    with fake_vllm(says(8, END)) as dying, fake_vllm(says(8, END)) as other:
        found = run(scenario(engine_of(dying, other), dying))
        (lost,) = dying.generated
        sent_again, later = other.generated
    assert found.ids == (8, END)
    assert lost["sampling_params"] == sent_again["sampling_params"], "the same seed gives the same tokens"
    assert later["token_ids"] == [3, 4, 8, END, 5]
    assert caplog.text.count("its requests are sent again") == 1


def test_restarted_server_gets_the_latest_weights_before_it_answers(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(engine: VllmEngine, server: FakeVllm) -> Completion:
        await engine.publish(3, torch.nn.Linear(2, 2))
        await turn(engine)
        server.forget()
        return await turn(engine)

    with fake_vllm(says(8, END)) as server:
        found = run(scenario(engine_of(server), server))
        assert server.weights
    assert found.policy_versions == (3, 3)
    assert f"{server.url} was restarted with the weights of version 3" in caplog.text


def test_restarted_server_gets_frozen_weights_again() -> None:
    model = torch.nn.Linear(2, 2)
    model.bias.requires_grad_(False)

    async def scenario(engine: VllmEngine, server: FakeVllm) -> None:
        await engine.publish(1, model)
        assert server.weights.keys() == {"weight", "bias"}
        server.forget()
        await engine.publish(2, model)
        assert server.weights.keys() == {"weight", "bias"}, "it was restarted without our notice"
        await turn(engine)
        server.forget()
        await turn(engine)
        assert server.weights.keys() == {"weight", "bias"}

    with fake_vllm(says(8, END)) as server:
        run(scenario(engine_of(server, model=model, vision={"bias"}), server))


def test_engine_without_a_live_server_fails_so_that_episodes_are_retried() -> None:
    async def scenario(engine: VllmEngine, stack: ExitStack) -> None:
        await turn(engine)
        stack.close()
        with pytest.raises(InfrastructureFailure, match=r"does not answer \(ConnectError"):
            await turn(engine)
        with pytest.raises(Outage, match="does not answer"):
            await engine.publish(1, torch.nn.Linear(2, 2))

    with ExitStack() as stack:
        server = stack.enter_context(fake_vllm(says(8, END)))
        run(scenario(engine_of(server), stack))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_model_len": 32}, "allows contexts of 32 tokens, and rollout.max_tokens is 64"),
        ({"raw_logprobs": True}, "without the temperature. Start it with: VLLM_SERVER_DEV_MODE=1 vllm serve"),
    ],
)
def test_engine_refuses_a_server_with_other_settings(options: dict[str, Any], message: str) -> None:
    with fake_vllm(says(8, END), **options) as server, pytest.raises(UserError) as raised:
        run(turn(engine_of(server)))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_engine_refuses_a_server_that_cannot_be_updated() -> None:
    with fake_vllm(says(8, END)) as server:
        server.missing.add("/init_weight_transfer_engine")
        with pytest.raises(UserError, match=r"has no /init_weight_transfer_engine\. Start it with: VLLM_SERVER"):
            run(turn(engine_of(server)))


class DyingReplica:
    """Replica that dies in the calls of `deaths` (numbers of calls) and counts its starts."""

    name = "vLLM"

    def __init__(self, deaths: set[int], spans: tuple[tuple[int, int, int], ...] = ()) -> None:
        self.deaths, self.spans = deaths, spans
        self.calls = self.starts = 0
        self.loaded: list[int] = []
        self.closed = self.dies_asleep = False

    async def start(self) -> None:
        self.starts += 1

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenChunk]:
        self.calls += 1
        await asyncio.sleep(0)
        if self.calls in self.deaths:
            raise ReplicaFailure("its engine died")
        yield TokenChunk(ids=(8, END), logprobs=(-1.0, -2.0), finished=True, version_spans=self.spans)

    async def abort(self, request: TokenRequest) -> None: ...

    async def load(self, weights: PublishedWeights) -> None:
        self.loaded.append(weights.version)

    async def sleep(self) -> None:
        if self.dies_asleep:
            raise ReplicaFailure("its engine died")

    async def close(self) -> None:
        self.closed = True


def dying_engine(replica: DyingReplica) -> VllmEngine:
    model = torch.nn.Linear(2, 2)
    return VllmEngine(model, [replica], FilePublisher(model), stop_ids=[END], decode=decode)


def test_dead_engine_is_restarted_once_for_all_sessions(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(engine: VllmEngine) -> list[Completion]:
        await engine.publish(5, torch.nn.Linear(2, 2))
        return await asyncio.gather(*(turn(engine, member=each) for each in range(3)))

    replica = DyingReplica({1, 2, 3})
    found = run(scenario(dying_engine(replica)))
    assert [each.ids for each in found] == [(8, END)] * 3
    assert (replica.starts, replica.loaded) == (2, [5, 5])
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [
        "vLLM failed (its engine died); its requests are sent again",
        "vLLM was restarted with the weights of version 5",
    ]


def test_engine_that_dies_in_its_sleep_is_restarted_by_publish() -> None:
    async def scenario(engine: VllmEngine, replica: DyingReplica) -> None:
        await turn(engine)
        replica.dies_asleep = True
        await engine.sleep()
        await engine.publish(1, torch.nn.Linear(2, 2))

    replica = DyingReplica(set())
    run(scenario(dying_engine(replica), replica))
    assert (replica.starts, replica.loaded) == (2, [0, 1])


def test_engine_that_dies_right_after_its_restart_ends_the_run() -> None:
    replica = DyingReplica({1, 2})
    with pytest.raises(Outage, match="failed again right after it was restarted"):
        run(turn(dying_engine(replica)))
    assert replica.starts == 2


def test_tokens_carry_the_version_that_sampled_them() -> None:
    replica = DyingReplica(set(), spans=((3, 0, 1), (4, 1, 2)))
    assert run(turn(dying_engine(replica))).policy_versions == (3, 4)


def test_replicas_are_closed_at_the_end_of_the_event_loop() -> None:
    async def scenario(engine: VllmEngine) -> None:
        await engine.publish(2, torch.nn.Linear(2, 2))
        await turn(engine)

    replica = DyingReplica(set())
    engine = dying_engine(replica)
    run(scenario(engine))
    assert replica.closed
    run(turn(engine))
    assert replica.loaded == [2, 2], "a new event loop starts it again with the latest weights"


def test_files_of_published_weights_are_removed(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    orphan, other = tmp_path / "turnwise-vllm-999999999-abc", tmp_path / "turnwise-vllm-1-abc"
    orphan.mkdir()
    other.mkdir()
    publisher = FilePublisher(model, tmp_path)
    assert (orphan.exists(), other.exists()) == (False, True), "only those of processes that are gone"
    for version in (1, 2):
        publisher.keep(publisher.write(version, model))
    assert [file.name for file in tmp_path.glob("*/*")] == ["version-2.safetensors"]
    del publisher
    assert not list(tmp_path.glob("*/*"))


def test_session_refuses_constraints() -> None:
    with fake_vllm(says(3, END)) as server, pytest.raises(ConstraintError, match="vLLM"):
        run(turn(engine_of(server), replace(SAMPLING, constraint=Constraint(grammar='start: "a"'))))
