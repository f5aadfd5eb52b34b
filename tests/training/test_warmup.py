import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from contexts_for_tests import Talk, play
from episodes_for_tests import renderer
from turnwise.core.errors import UserError
from turnwise.core.images import find_images
from turnwise.core.messages import Picture, user
from turnwise.core.random_streams import random_stream
from turnwise.core.samples import Sample
from turnwise.core.task import Task
from turnwise.data.demonstrations import build_demonstration
from turnwise.data.packing import pack
from turnwise.envs.answers import read_answer
from turnwise.envs.registry import load_spec, spec_of
from turnwise.envs.runner import TextEnvRunner
from turnwise.envs.seeds import split_of_seed
from turnwise.envs.spec import EnvSpec
from turnwise.envs.text_env import Outcome, TextEnv, goes_on, won
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.loading.load import LoadedModel, load_model
from turnwise.models.loading.tiny import PIXELS, tiny_tokenizer
from turnwise.models.vision.encoder import vision_parameters
from turnwise.pictures.observation import draw_observation
from turnwise.render.renderer import Renderer
from turnwise.rollout.context_modes import TurnContext
from turnwise.training import warmup
from turnwise.training.describe_boards import GROUNDS, Boards
from turnwise.training.optimizer import Optimizer
from turnwise.training.warmup import Warmup, load_warmed_up, random_episode, split_turns, warm_up


class Steps(TextEnv):
    """Go on or stop."""

    max_turns = 3
    action_names = ("Up", "Down")

    def reset(self, rng: random.Random) -> str:
        return f"Now {rng.randint(1, 9)}."

    def step(self, action: str) -> Outcome:
        return goes_on("Again.")


class Wordless(TextEnv):
    """Says something, and offers no random action."""

    max_turns = 2

    def reset(self, rng: random.Random) -> str:
        return "Guess my number."

    def step(self, action: str) -> Outcome:
        return won() if int(action) == 7 else goes_on("higher")


def load_tiny(name: str) -> LoadedModel:
    return load_model(name, attn_implementation=ATTENTION)


def episode(kind: EnvSpec, number: int = 0, seed: int = 0) -> Sample:
    exchanges = asyncio.run(random_episode(kind, kind.check_params({}), seed, number))
    return build_demonstration(number, exchanges, renderer())


def turns_of(sample: Sample) -> list[str]:
    """What stands between each generation prompt and the end of its turn, that end included."""
    text = renderer().decode(sample.ids.tolist())
    return [part.partition("<|end|>")[0] + "<|end|>" for part in text.split("<|assistant|>")[1:]]


@pytest.mark.parametrize("kind", ["bandit", "frozen_lake", "sokoban"])
def test_random_episode_is_legal_from_start_to_end(kind: str) -> None:
    sample = episode(load_spec(kind))
    env = load_spec(kind).cls()
    turns = turns_of(sample)
    assert 1 <= len(turns) <= env.max_turns
    for turn in turns:
        answer = read_answer(turn, several=env.max_actions_per_turn > 1)
        assert 1 <= len(answer.actions) <= env.max_actions_per_turn
    assert "Invalid" not in renderer().decode(sample.ids.tolist())


@pytest.mark.parametrize("kind", [spec_of(Steps), spec_of(Wordless), load_spec("frozen_lake")])
def test_warm_up_masks_only_answers_and_their_ends(kind: EnvSpec) -> None:
    sample = episode(kind)
    learnt = renderer().decode(sample.ids[sample.mask].tolist())
    assert [turn in learnt for turn in turns_of(sample)] == [True] * len(turns_of(sample))
    assert learnt.count("<answer>") == learnt.count("</answer><|end|>") == len(turns_of(sample))
    assert "<|system|>" not in learnt and kind.summary not in learnt
    assert int(sample.ids[-1]) == tiny_tokenizer().eos_token_id and bool(sample.mask[-1])


def test_random_episode_depends_on_number_and_seed_only() -> None:
    kind = load_spec("frozen_lake")
    assert torch.equal(episode(kind, 3).ids, episode(kind, 3).ids)
    seen = {tuple(episode(kind, number, seed).ids.tolist()) for number in range(3) for seed in range(2)}
    assert len(seen) == 6


def test_only_training_tasks_are_played(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Task] = []
    plain = EnvSpec.make

    def make(self: EnvSpec, task: Task, member: int = 0, attempt: int = 0) -> TextEnvRunner:
        made.append(task)
        return plain(self, task, member, attempt)

    monkeypatch.setattr(EnvSpec, "make", make)
    for number in range(15):
        episode(spec_of(Steps), number)
    assert {(task.split, split_of_seed(task.seed)) for task in made} == {("train", "train")}


def test_warm_up_without_random_actions_teaches_the_format() -> None:
    words = set()
    for number in range(30):
        for turn in turns_of(episode(spec_of(Wordless), number)):
            answer = read_answer(turn, several=False)
            assert turn == f"<answer>{answer.actions[0]}</answer><|end|>"
            words.add(answer.actions[0])
    assert len(words) > 10
    assert words <= {"Guess", "my", "number.", "higher", "No", "turns", "left.", "Invalid", "action."} | {
        str(number) for number in range(101)
    }


def test_warm_up_teaches_the_format_and_is_deterministic() -> None:
    kind = spec_of(Steps)
    models = [load_tiny("tiny") for _ in range(2)]
    shown: list[tuple[int, int]] = []
    for loaded in models:
        warm_up(loaded, [(kind, kind.check_params({}))], steps=4, seed=0, show=lambda *now: shown.append(now))
    assert shown == [(step, 4) for step in range(1, 5)] * 2
    first, second = (dict(loaded.model.named_parameters()) for loaded in models)
    assert all(torch.equal(first[name], second[name]) for name in first)
    sample = episode(kind, number=10_000)
    fresh, warmed = (_likelihood(loaded.model, sample) for loaded in (load_tiny("tiny"), models[0]))
    assert warmed > fresh + 1


def test_warm_up_of_single_turns_has_the_contexts_of_the_run() -> None:
    kind = spec_of(Steps)
    exchanges = asyncio.run(random_episode(kind, kind.check_params({}), 0, 0))
    opening, *later = (each.messages for each in exchanges)
    last = (user("The end."),)
    talk = Talk(opening=opening, answers=(*later, last), said=tuple(each.answer for each in exchanges))
    played = play(talk, TurnContext(renderer(), turns=0, keep_opening=False), renderer())
    samples = [build_demonstration(0, each, renderer()) for each in split_turns(exchanges)]
    assert len(samples) == kind.cls.max_turns == len(played.witness.contexts)
    for sample, context in zip(samples, played.witness.contexts, strict=True):
        assert sample.ids[: len(context)].tolist() == list(context)
        assert not sample.mask[: len(context)].any() and bool(sample.mask[len(context) :].all())


def test_warm_up_of_single_turns_trains_on_some_turns_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[list[Sample]] = []
    monkeypatch.setattr(warmup, "pack", lambda samples: packed.append(samples) or pack(samples))
    monkeypatch.setattr(warmup, "SINGLE_TURNS", 2)
    kind = spec_of(Steps)
    warm_up(
        load_tiny("tiny"), [(kind, kind.check_params({}))], steps=1, seed=0, show=lambda *_: None, single_turns=True
    )
    ((*samples,),) = packed
    assert len(samples) == 2 * warmup.EPISODES_PER_STEP
    assert all(len(turns_of(each)) == 1 for each in samples)


def first_step(monkeypatch: pytest.MonkeyPatch, kind: EnvSpec, single_turns: bool = False) -> list[Sample]:
    """Return the samples of the first step on random actions, without training on them."""
    drawn: list[Sample] = []
    monkeypatch.setattr(warmup, "_train", lambda _, __, draw, steps, show: drawn.extend(draw(0) if steps else ()))
    environments = [(kind, kind.check_params({}))]
    warm_up(load_tiny("tiny"), environments, steps=60, seed=0, show=lambda *_: None, single_turns=single_turns)
    return drawn


@pytest.mark.parametrize("kind", ["guess_city", "twenty_questions", "game_2048", "web_shop"])
def test_warm_up_cuts_long_episodes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole games of guess_city would have 59,000 tokens per step: 45 minutes before the first step."""
    samples = first_step(monkeypatch, load_spec(kind))
    assert len(samples) == warmup.EPISODES_PER_STEP
    assert 8_000 < sum(map(len, samples)) <= 16_384
    for number, sample in enumerate(samples):
        whole = episode(load_spec(kind), number)
        assert torch.equal(sample.ids, whole.ids[: len(sample)]) and torch.equal(sample.mask, whole.mask[: len(sample)])
        assert bool(sample.mask[-1])


def test_warm_up_keeps_whole_episodes_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    for number, sample in enumerate(first_step(monkeypatch, load_spec("sudoku"))):
        assert torch.equal(sample.ids, episode(load_spec("sudoku"), number).ids)


@pytest.mark.parametrize("single_turns", [False, True])
def test_warm_up_keeps_the_first_turn_at_least(single_turns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(warmup.WARMUPS, "tiny", Warmup(action_tokens=1))
    samples = first_step(monkeypatch, spec_of(Steps), single_turns)
    assert [len(turns_of(each)) for each in samples] == [1] * warmup.EPISODES_PER_STEP


class Verbose(Steps):
    """Shows megabytes after the first turn, or at once."""

    start = "Now."

    def reset(self, rng: random.Random) -> str:
        return self.start

    def step(self, action: str) -> Outcome:
        return goes_on("word " * 500_000)


class VerboseStart(Verbose):
    """Shows megabytes at once."""

    start = "word " * 500_000


def test_warm_up_encodes_no_megabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = first_step(monkeypatch, spec_of(Verbose))
    assert [len(turns_of(each)) for each in samples] == [1] * warmup.EPISODES_PER_STEP
    with pytest.raises(UserError, match=r"The first observation of VerboseStart has 2,5\d\d,\d\d\d characters"):
        first_step(monkeypatch, spec_of(VerboseStart))


class Hanging(Steps):
    """Never returns from a step."""

    def step(self, action: str) -> Outcome:
        while True:
            pass


class Waiting(Steps):
    """Waits for ever in a step."""

    async def step(self, action: str) -> Outcome:  # type: ignore[override]
        await asyncio.Event().wait()
        return won()


@pytest.mark.parametrize(
    ("cls", "cause"), [(Hanging, r"without a pause, at test_warmup\.py:\d+"), (Waiting, "Timed out")]
)
def test_random_episode_that_hangs_ends_at_its_time_limit(cls: type[TextEnv], cause: str) -> None:
    kind = spec_of(cls)
    with pytest.raises(UserError, match=rf"{cause}.*rollout\.timeout_s"):
        asyncio.run(random_episode(kind, kind.check_params({}), 0, 0, timeout_s=0.2))


@torch.no_grad()
def _likelihood(model: Any, sample: Sample) -> float:
    """The mean log-probability of what is learnt, from a plain forward."""
    model.set_attn_implementation("eager")
    places = sample.mask.nonzero().squeeze(1)
    logprobs = model(sample.ids[None]).logits[0].log_softmax(-1)
    return float(logprobs[places - 1, sample.ids[places]].mean())


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """A cache of its own; the seeds of the warm-ups that were really run, which do nothing here."""
    seeds: list[int] = []
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(warmup, "warm_up", lambda *_, seed, **__: seeds.append(seed))
    return seeds


def warmed(kind: EnvSpec, *, steps: int = 5, seed: int = 0, single_turns: bool = False, **params: Any) -> LoadedModel:
    environments = [(kind, kind.check_params(params))]
    return load_warmed_up(
        "tiny", environments, steps=steps, seed=seed, load=load_tiny, show=lambda *_: None, single_turns=single_turns
    )[0]


def test_warm_up_is_cached(made: list[int], tmp_path: Path) -> None:
    first, second = warmed(spec_of(Steps)), warmed(spec_of(Steps))
    assert made == [0]
    assert Path(first.name).parent == tmp_path / "cache/models"
    assert first.name == second.name
    parameters = dict(second.model.named_parameters())
    assert all(torch.equal(weight, parameters[name]) for name, weight in first.model.named_parameters())
    assert all(parameter.requires_grad for parameter in parameters.values())


def test_warm_up_cache_depends_on_environment_contexts_seed_and_steps(made: list[int]) -> None:
    lake = load_spec("frozen_lake")
    asked: list[Callable[[], LoadedModel]] = [
        lambda: warmed(lake),
        lambda: warmed(lake, size=5),
        lambda: warmed(lake, seed=1),
        lambda: warmed(lake, steps=6),
        lambda: warmed(lake, single_turns=True),
        lambda: warmed(spec_of(Steps)),
    ]
    names = [ask().name for ask in asked]
    assert len(set(names)) == len(made) == 6
    assert [ask().name for ask in asked] == names
    assert len(made) == 6


def test_warm_up_cache_depends_on_the_learning_rate(made: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    first = warmed(spec_of(Steps), steps=1)
    monkeypatch.setitem(warmup.WARMUPS, "tiny", replace(warmup.WARMUPS["tiny"], learning_rate=1e-3))
    assert warmed(spec_of(Steps), steps=1).name != first.name and len(made) == 2


@pytest.mark.parametrize("settings", [{"dtype": "bfloat16"}, {"chat_template": "plain.jinja"}], ids=str)
def test_warmup_cache_distinguishes_dtype_and_chat_template(
    settings: dict[str, str], made: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiny trained in bfloat16 or on another template must not become the start of a default run."""
    monkeypatch.chdir(tmp_path)
    Path("plain.jinja").write_text("{% for message in messages %}{{ message.content }}\n{% endfor %}")
    kind = spec_of(Steps)
    environments = [(kind, kind.check_params({}))]

    def load(name: str) -> LoadedModel:
        return load_model(name, attn_implementation=ATTENTION, **settings)

    other, _ = load_warmed_up("tiny", environments, steps=5, seed=0, load=load, show=lambda *_: None)
    default = warmed(kind)
    assert other.name != default.name and len(made) == 2
    assert default.tokenizer.chat_template == tiny_tokenizer().chat_template


def test_warm_up_trains_both_of_its_parts_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random boards and random actions have an optimizer each, over the same parameters."""
    optimizers: list[warmup.Optimizer] = []

    def build(*arguments: Any) -> warmup.Optimizer:
        optimizers.append(Optimizer(*arguments))
        return optimizers[-1]

    monkeypatch.setattr(warmup, "Optimizer", build)
    loaded = load_model("tiny", attn_implementation=ATTENTION, dtype="bfloat16")
    before = [each.detach().clone() for each in loaded.model.parameters()]
    kind = spec_of(Steps)
    warmup.warm_up(loaded, [(kind, kind.check_params({}))], steps=1, seed=0, show=lambda *_: None)
    assert len(optimizers) == 2
    assert any(not torch.equal(old, new) for old, new in zip(before, loaded.model.parameters(), strict=True))


def test_edited_environment_is_warmed_up_anew(made: list[int], tmp_path: Path) -> None:
    text = "from turnwise.envs.text_env import *\nclass Mine(TextEnv):\n    {}\n" + (
        "    def reset(self, rng): return 'x'\n    def step(self, action): return won()\n"
    )
    names = []
    for folder, line in (("a", "max_turns = 1"), ("b", "max_turns = 1"), ("c", "max_turns = 1  # edited")):
        file = tmp_path / folder / "mine.py"
        file.parent.mkdir()
        file.write_text(text.format(line))
        names.append(warmed(load_spec(f"{file}:Mine")).name)
    assert names[0] == names[1] != names[2]


def test_warm_up_reports_a_failing_environment_in_one_line() -> None:
    class Broken(TextEnv):
        """Always fails."""

        def reset(self, rng: random.Random) -> str:
            raise KeyError("boom")

        def step(self, action: str) -> Outcome:
            raise AssertionError("never reached")

    kind = spec_of(Broken)
    with pytest.raises(UserError, match=r"during the warm-up of tiny: Broken.reset raised KeyError"):
        warm_up(load_model("tiny"), [(kind, kind.check_params({}))], steps=1, seed=0, show=lambda *_: None)


@pytest.mark.parametrize(("reward", "picture"), [("1", None), (1j, None), (1e308, None), (1.0, "P _ G")])
def test_warm_up_reports_a_bad_reward_or_drawing_in_one_line(reward: Any, picture: Any) -> None:
    class Broken(TextEnv):
        """Returns nonsense."""

        action_names = ("go",)

        def reset(self, rng: random.Random) -> str:
            return "start"

        def step(self, action: str) -> Outcome:
            return goes_on("on", reward=reward)

        def draw(self) -> Any:
            return picture

    kind = spec_of(Broken)
    with pytest.raises(UserError, match=r"during the warm-up of tiny: Broken\.(step|draw) returned .*: return"):
        warm_up(load_tiny("tiny"), [(kind, kind.check_params({}))], steps=1, seed=0, show=lambda *_: None)


def test_described_board_names_the_cells_that_its_picture_shows() -> None:
    loaded = load_model("tiny_vlm")
    assert loaded.images is not None
    renderer, boards = Renderer(loaded.tokenizer, images=loaded.images), Boards()
    rows = boards.draw_rows(random_stream("warmup boards", 3, 5))
    sample = boards.describe(renderer, PIXELS, 3, 5)
    facts = loaded.tokenizer.decode(sample.ids[sample.mask].tolist()).removesuffix("<|end|>").splitlines()
    objects = [name for row in rows for name in row if name not in GROUNDS]
    assert [fact.partition(" at ")[0].replace(" ", "_") for fact in facts] == objects
    (span,) = find_images(sample.ids.tolist())
    assert span.end - span.start == len(rows) * len(rows[0])
    assert loaded.images.store.get(span.hash) == draw_observation(Picture(rows=rows), PIXELS).data


@pytest.mark.parametrize("max_side", [3, 6])
def test_boards_have_sides_up_to_the_largest(max_side: int) -> None:
    boards = [Boards(max_side=max_side).draw_rows(random.Random(seed)) for seed in range(200)]
    assert {len(rows) for rows in boards} == {len(rows[0]) for rows in boards} == set(range(2, max_side + 1))


def test_boards_repeat_after_the_distinct_ones() -> None:
    loaded, boards = load_model("tiny_vlm"), Boards(distinct=2)
    renderer = Renderer(loaded.tokenizer, images=loaded.images)
    first, second, third = (boards.describe(renderer, PIXELS, 0, number).ids.tolist() for number in range(3))
    assert first == third != second


def test_warm_up_draws_boards_that_repeat_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, describe = list[int](), Boards.describe
    monkeypatch.setattr(Boards, "describe", lambda self, *args: drawn.append(args[-1]) or describe(self, *args))
    monkeypatch.setitem(warmup.WARMUPS, "tiny_vlm", Warmup(boards=Boards(per_step=2, distinct=3), action_steps=0))
    params = load_spec("frozen_lake").check_params({"observation": "image", "cell_pixels": 8})
    environments = [(load_spec("frozen_lake"), params)]
    loaded = load_model("tiny_vlm", attn_implementation=ATTENTION)
    warm_up(loaded, environments, steps=2, seed=0, show=lambda *_: None)
    assert drawn == [0, 1, 2]  # of eight boards in four steps


def test_warm_up_describes_boards_only_for_environments_with_images() -> None:
    shown = dict[str, list[tuple[int, int]]]()
    for observation in ("text", "image"):
        params = load_spec("frozen_lake").check_params({"observation": observation, "cell_pixels": 8})
        seen = shown.setdefault(observation, [])
        loaded = load_model("tiny_vlm", attn_implementation=ATTENTION)
        before = [each.clone() for each in vision_parameters(loaded.model)]
        environments = [(load_spec("frozen_lake"), params)]
        warm_up(loaded, environments, steps=1, seed=0, show=lambda done, total, seen=seen: seen.append((done, total)))
        changed = any(not torch.equal(*pair) for pair in zip(before, vision_parameters(loaded.model), strict=True))
        assert changed == (observation == "image")
    assert shown == {"text": [(1, 1)], "image": [(1, 3), (2, 3), (3, 3)]}
