"""Judges that compare the members of a group: one call, or pairs in both orders; no place favours anybody."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judges_for_tests import JudgeServer, attempts, client_of, decode, fenced, group_of, member, serving, settings_for
from turnwise.core.errors import InfrastructureFailure, UserError
from turnwise.core.protocols import GroupReward, RewardResult
from turnwise.core.trajectory import Trajectory
from turnwise.rewards.factory import build_group_judges, judge_weights
from turnwise.rewards.judge.budget import JudgeCounts
from turnwise.rewards.judge.judges import GroupJudge, _pairs
from turnwise.rewards.judge.registry import JudgeRegistry


def by_number(messages: list[dict[str, str]]) -> str:
    """Every attempt says a number, and that is its score."""
    scores = {str(place): int(said.split()[-1]) for place, said in enumerate(attempts(messages), start=1)}
    return json.dumps({"scores": scores})


def higher_wins(messages: list[dict[str, str]]) -> str:
    first, second = (int(said.split()[-1]) for said in attempts(messages))
    return json.dumps({"reason": "", "winner": "tie" if first == second else "1" if first > second else "2"})


def judged(server: JudgeServer, folder: Path, *members: Trajectory, **options: Any) -> Any:
    with serving(server) as url:
        settings = settings_for(url, folder, **options)
        judge: GroupReward = GroupJudge(settings=settings, client=client_of(settings), decode=decode)
        results = asyncio.run(judge(group_of(*members)))
    return [result.turn_rewards for result in results if isinstance(result, RewardResult)]


def test_relative_judge_shows_the_common_prefix_once(tmp_path: Path) -> None:
    server = JudgeServer(by_number)
    members = [member("I look.", "7"), member("I look.", "2"), member("I look.", "10"), member("4")]
    assert judged(server, tmp_path, *members, mode="relative") == [(0.0, 0.7), (0.0, 0.2), (0.0, 1.0), (0.4,)]
    (request,) = server.requests
    text = request["messages"][1]["content"]
    assert text.count("word1 word2") == 1
    assert text.count("I look.") == 3, "the fourth did not look, so that is not shared"


def test_relative_judge_shows_a_long_common_prefix_once(tmp_path: Path) -> None:
    server = JudgeServer(by_number)
    members = [member("I look.", str(score)) for score in (3, 9)]
    assert judged(server, tmp_path, *members, mode="relative") == [(0.0, 0.3), (0.0, 0.9)]
    text = server.requests[0]["messages"][1]["content"]
    assert (text.count("I look."), text.count("word7")) == (1, 1)


class Recorded:
    """A client without a connection."""

    def __init__(self) -> None:
        self.asked: list[list[dict[str, str]]] = []
        self.counts = JudgeCounts()

    async def ask(self, messages: Any, read: Any) -> Any:
        self.asked.append([{"role": message.role, "content": message.content} for message in messages])
        return read(by_number(self.asked[-1]))


def recorded(*members: Trajectory) -> tuple[list[tuple[float, ...]], list[list[dict[str, str]]]]:
    client = Recorded()
    settings = settings_for("http://x/v1", Path("unused"), mode="relative")
    judge = GroupJudge(settings=settings, client=client, decode=decode)  # type: ignore[arg-type]
    return [result.turn_rewards for result in asyncio.run(judge(group_of(*members))) if result], client.asked


@given(scores=st.lists(st.integers(0, 10), min_size=2, max_size=6), seed=st.randoms(use_true_random=False))
def test_relative_judge_ignores_the_order_of_members(scores: list[int], seed: Any) -> None:
    other = list(scores)
    seed.shuffle(other)
    even = len(set(scores)) == 1
    requests = []
    for order in (scores, other):
        found, asked = recorded(*(member(f"it is {score}") for score in order))
        assert found == [(0.5 if even else score / 10,) for score in order]
        requests.append(asked)
    assert requests[0] == requests[1] and len(requests[0]) == (not even)


def test_relative_judge_shuffles_members() -> None:
    firsts = set()
    for group in range(12):
        found, asked = recorded(*(member(f"try {group} of {number} says {number}") for number in range(4)))
        assert found == [(0.0,), (0.1,), (0.2,), (0.3,)]
        firsts.add(attempts(asked[0])[0].split()[-1])
    assert len(firsts) >= 3


@pytest.mark.parametrize("mode", ["relative", "pairwise"])
@pytest.mark.parametrize("members", [[member("1")], [member("1", number=0), member("1", number=1)], [member()]])
def test_comparing_judges_skip_groups_of_equal_members(mode: str, members: Any, tmp_path: Path) -> None:
    server = JudgeServer(by_number)
    assert judged(server, tmp_path, *members, mode=mode) == [(0.5,) * len(each.turns) for each in members]
    assert server.requests == []


def test_group_judge_scores_equal_members_once(tmp_path: Path) -> None:
    server = JudgeServer(by_number)
    members = [member("3"), member("8"), member("3"), member("8"), member()]
    assert judged(server, tmp_path, *members, mode="relative") == [(0.3,), (0.8,), (0.3,), (0.8,), ()]
    assert len(attempts(server.requests[0]["messages"])) == 2


def test_pairwise_judge_gives_the_share_of_wins(tmp_path: Path) -> None:
    server = JudgeServer(higher_wins)
    members = [member("a 5"), member("b 9"), member("c 5"), member("d 1")]
    assert judged(server, tmp_path, *members, mode="pairwise") == [(0.5,), (1.0,), (0.5,), (0.0,)]
    assert len(server.requests) == 12
    orders = {tuple(attempts(request["messages"])) for request in server.requests}
    assert all((second, first) in orders for first, second in orders)


def test_pairwise_judge_cancels_position_bias(tmp_path: Path) -> None:
    server = JudgeServer(lambda messages: '{"winner": "1"}')
    members = [member(str(number)) for number in range(4)]
    assert judged(server, tmp_path, *members, mode="pairwise") == [(0.5,)] * 4


def test_pairwise_judge_counts_duplicates_as_opponents(tmp_path: Path) -> None:
    """Each 5 ties with the other 5, loses to the 9 and beats the 1."""
    members = [member("5"), member("5"), member("9"), member("1")]
    found = judged(JudgeServer(higher_wins), tmp_path, *members, mode="pairwise")
    assert found == [((0.5 + 0 + 1) / 3,)] * 2 + [(1.0,), (0.0,)]


def test_pairwise_judge_limits_opponents(tmp_path: Path) -> None:
    server = JudgeServer(higher_wins)
    members = [member(str(number)) for number in range(8)]
    found = judged(server, tmp_path, *members, mode="pairwise", opponents=2)
    assert len(server.requests) == 2 * 8
    assert found[7] == (1.0,) and found[0] == (0.0,)


@given(count=st.integers(2, 12), opponents=st.integers(0, 14))
def test_pairs_are_unique_and_equally_many_for_each_member(count: int, opponents: int) -> None:
    pairs = _pairs(count, opponents)
    met = [sum(place in pair for pair in pairs) for place in range(count)]
    assert len(set(met)) == 1 and met[0] >= min(opponents or count, count - 1)
    assert len({frozenset(pair) for pair in pairs}) == len(pairs) and all(a != b for a, b in pairs)


def test_absolute_judge_scores_each_member_alone(tmp_path: Path) -> None:
    def script(messages: list[dict[str, str]]) -> str:
        said = [text for kind, text in fenced(messages)[0] if kind == "agent"]
        return json.dumps({"score": int(said[-1])})

    server = JudgeServer(script)
    members = [member("look", "7"), member("2"), member("2")]
    assert judged(server, tmp_path, *members) == [(0.0, 0.7), (0.2,), (0.2,)]
    assert len(server.requests) == 2


def by_last_word(messages: list[dict[str, str]]) -> str:
    """An answer that speaks of bananas derails it."""
    said = [text for kind, text in fenced(messages)[0] if kind == "agent"][-1]
    return "I cannot." if "banana" in said else json.dumps({"score": int(said.split()[-1])})


def test_absolute_judge_failure_affects_one_member_only(tmp_path: Path) -> None:
    members = [member("it is 7"), member("banana"), member("2"), member("banana"), member()]
    with serving(JudgeServer(by_last_word)) as url:
        settings = settings_for(url, tmp_path)
        client = client_of(settings)
        found = asyncio.run(GroupJudge(settings=settings, client=client, decode=decode)(group_of(*members)))
    failure = (
        "the judge m gave no verdict (asked 3 times): that is not one JSON object and nothing else; "
        'its last answer: "I cannot."'
    )
    given = [each.turn_rewards if isinstance(each, RewardResult) else str(each) for each in found]
    assert given == [(0.7,), failure, (0.2,), failure, ()]
    assert client.counts.left_out == 2 and client.counts.metrics()["judge/left_out"] == 2.0


def test_absolute_judge_raises_if_no_member_has_a_verdict(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureFailure, match=r"gave no verdict \(asked 3 times\)"):
        judged(JudgeServer(by_last_word), tmp_path, member("a banana"), member("two bananas"))


def test_absolute_judge_raises_user_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="budget of 2 calls is spent"):
        judged(JudgeServer(by_last_word), tmp_path, *(member(str(score)) for score in range(3)), max_calls=2)


MISSING = {
    "a member": '{"scores": {"1": 5}}',
    "a member too many": '{"scores": {"1": 5, "2": 5, "3": 5}}',
    "a list": '{"scores": [5, 5]}',
    "one out of range": '{"scores": {"1": 5, "2": 50}}',
}


@pytest.mark.parametrize("what", MISSING)
def test_relative_judge_rejects_scores_that_do_not_match_members(what: str, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureFailure, match="gave no verdict"):
        judged(JudgeServer(lambda messages: MISSING[what]), tmp_path, member("1"), member("2"), mode="relative")


@pytest.mark.parametrize("winner", ['"3"', "true", "1.0", "null", '"first"'])
def test_pairwise_judge_rejects_unknown_winners(winner: str, tmp_path: Path) -> None:
    server = JudgeServer(lambda messages: f'{{"winner": {winner}}}')
    with pytest.raises(InfrastructureFailure, match="gave no verdict"):
        judged(server, tmp_path, member("1"), member("2"), mode="pairwise")


def test_build_group_judges_reads_names_and_weights(tmp_path: Path) -> None:
    common = {"model": "m", "rubric": "r", "endpoint": "http://127.0.0.1:1/v1", "cache": str(tmp_path)}
    tables = [{**common, "mode": "relative", "weight": -0.5}, {**common, "name": "other"}]
    judges = build_group_judges(tables, JudgeRegistry(), decode)
    assert judge_weights(tables) == {"judge": -0.5, "other": 1.0}
    assert {name: judge.settings.mode for name, judge in judges.items()} == {"judge": "relative", "other": "absolute"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("tables", "line"),
    [
        ([{}], 'a judge lacks its option "model": give model = ...'),
        ([{"model": "m", "rubric": "r", "weigth": 2}], 'a judge has no option "weigth": did you mean "weight"?'),
        ([{"model": "m", "rubric": "r", "mod": "x"}], 'a judge has no option "mod": did you mean "mode"?'),
        ([{"model": "m", "rubric": "r", "name": "env"}], 'Two rewards are called "env"'),
        ([{"model": "m", "rubric": "r", "against": "gold"}], "remove against and shows"),
        ([{"model": "m", "rubric": "r", "opponents": 3}], "opponents has no effect"),
        ([{"model": "m", "rubric": "r", "endpoint": "local", "key_env": "K"}], "key_env has no effect"),
        ([{"model": "m", "rubric": "r", "endpoint": "local", "key_file": "k"}], "key_file has no effect"),
        ([{"model": "m", "rubric": "r", "endpoint": "local", "timeout_s": 60.0}], "timeout_s has no effect"),
        ([{"model": "m", "rubric": "r", "endpoint": "local", "retries": 0}], "retries has no effect"),
        ([{"model": "m", "rubric": "r", "scale": [3, 3]}], "scale must be a lower number followed by a higher one"),
    ],
)
def test_build_group_judges_explains_mistakes_in_one_line(tables: Any, line: str) -> None:
    with pytest.raises(UserError) as error:
        build_group_judges(tables, JudgeRegistry(), decode)
    assert line in str(error.value) and "\n" not in str(error.value)
