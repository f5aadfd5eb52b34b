"""What came of an evaluation: tables for the person, a summary and a figure for the folder."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from turnwise.config.load import build, read_saved_settings, to_toml
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.core.task import Split
from turnwise.envs.seeds import FIRST_SEED, SEEDS_PER_SPLIT, seed_for, split_of_seed
from turnwise.evaluation.compare import Paired, compare_all
from turnwise.evaluation.episodes import Evaluation
from turnwise.recipes.eval_contestants import Contestant
from turnwise.record.evaluation_folder import EvaluationFolder, read_plan
from turnwise.report.success_chart import SuccessBar, draw_success_chart
from turnwise.report.tables import comparison_table, evaluation_table, models_table

COMPARED = ("eval.temperature", "eval.top_p", "eval.top_k", "rollout.max_new_tokens", "rollout.max_tokens")
MANY_CUT = 0.1
"""Share of turns that hit their token limit above which that is worth a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    environment: str
    params: Mapping[str, Any]
    split: Split
    tasks: int
    tries: int
    contestants: Sequence[Contestant]
    evaluations: Sequence[Evaluation]

    @property
    def on(self) -> str:
        """On what, in words."""
        return f"{self.environment}, {self.tasks} tasks of the {self.split} split" + (
            f", {self.tries} tries each" if self.tries > 1 else ""
        )

    @property
    def missing(self) -> int:
        return sum(evaluation.errors for evaluation in self.evaluations)

    def rows(self) -> list[tuple[str, dict[str, float]]]:
        both = zip(self.contestants, self.evaluations, strict=True)
        return [(contestant.label, evaluation.metrics()) for contestant, evaluation in both]

    def pairs(self) -> list[tuple[str, Paired | None]]:
        """Each but the first, compared with it."""
        labels = [contestant.label for contestant in self.contestants[1:]]
        return list(zip(labels, compare_all(self.evaluations), strict=True))


def show(results: Results, console: Console) -> None:
    rows = results.rows()
    if len(rows) == 1:
        console.print(evaluation_table(rows[0][0], results.on, rows[0][1]))
    else:
        console.print(models_table(rows, results.on))
        pairs = [(label, None if pair is None else asdict(pair)) for label, pair in results.pairs()]
        console.print(comparison_table(rows[0][0], pairs))
    for note in notes(results):
        console.print(note, markup=False, soft_wrap=True)


def notes(results: Results) -> Iterator[str]:
    """What a reader of the tables must know to read them right."""
    for key in COMPARED:
        section, _, name = key.partition(".")
        values = [getattr(getattr(each.config, section), name) for each in results.contestants]
        if any(value != values[0] for value in values):
            given = ", ".join(f"{each.label} {value}" for each, value in zip(results.contestants, values, strict=True))
            yield f"{key} differs: {given}"
    for contestant, (label, metrics) in zip(results.contestants, results.rows(), strict=True):
        if metrics["eval/cut"] > MANY_CUT:
            limit = contestant.config.rollout.max_new_tokens
            share = f"{100 * metrics['eval/cut']:.0f} %"
            yield f"{label}: {share} of turns were cut at rollout.max_new_tokens {limit}: raise it to let them finish"
    if results.split == "train":
        yield "these are training tasks: a model that was trained here may have seen them"


def summary(results: Results) -> dict[str, Any]:
    """What `summary.json` holds."""
    return {
        "environment": results.environment,
        "params": dict(results.params),
        "split": results.split,
        "tasks": results.tasks,
        "tries": results.tries,
        "finished": results.missing == 0,
        "models": [
            {"label": each.label, "source": each.source, "endpoint": each.url, **_plain(metrics)}
            for each, (_, metrics) in zip(results.contestants, results.rows(), strict=True)
        ],
        "comparisons": [
            {"first": results.contestants[0].label, "second": label, **asdict(pair)}
            for label, pair in results.pairs()
            if pair is not None
        ],
    }


def _plain(metrics: Mapping[str, float]) -> dict[str, float]:
    return {key.removeprefix("eval/"): value for key, value in metrics.items()}


def figure(results: Results) -> str:
    bars = []
    for label, metrics in results.rows():
        bars.append(
            SuccessBar(
                label=label,
                success=metrics["eval/success"],
                low=metrics["eval/success_low"],
                high=metrics["eval/success_high"],
                pass_at_k=metrics.get(f"eval/pass_at_{results.tries}"),
            )
        )
    return draw_success_chart(bars, results.on, results.tries)


FOLDER = "runs"
SECTIONS = ("env", "model", "rollout", "context", "eval")
FREE = ("rollout.in_flight", "rollout.attempts", "eval.episodes", "eval.every")
"""What may change while an evaluation goes on: it does not change what an episode is."""


def free_path(environment: str, names: Sequence[str]) -> Path:
    """Where an evaluation goes that was given no folder."""
    more = f"-and-{len(names) - 1}-more" if len(names) > 1 else ""
    base = Path(FOLDER) / f"eval-{environment}-{names[0]}{more}"
    paths = [base, *(base.with_name(f"{base.name}-{number}") for number in range(2, 10_000))]
    return next(path for path in paths if not path.exists())


def save_plan(
    folder: EvaluationFolder,
    contestants: Sequence[Contestant],
    *,
    split: str,
    seeds: Sequence[int],
    tries: int,
    key_variable: str | None,
) -> None:
    """Tasks, tries and models may be added to what the folder holds; what its episodes were played with may not change.

    Models that are not asked for this time stay in the plan, as their episodes do in the folder.
    """
    rows = {each.name: _row(each) for each in contestants}
    plan: dict[str, Any] = {
        "environment": contestants[0].config.env.kind,
        "split": split,
        "seeds": write_seeds(seeds),
        "tries": tries,
        "models": list(rows.values()),
    }
    if key_variable is not None:
        plan["api_key_env"] = key_variable
    if not folder.is_new:
        old = read_plan(folder.path)
        _check_same(folder, {"environment": old["environment"], "split": old["split"]}, plan)
        held = read_seeds(old["seeds"], old["split"])
        if set(seeds) < set(held):
            raise UserError(
                f"{folder.path} holds an evaluation of {len(held)} tasks, and {len(seeds)} of them are asked for, "
                "which would take its place: give another --out"
            )
        before = {row["name"]: row for row in old["models"]}
        for each in contestants:
            if each.name in before:
                _check_same(folder, before[each.name], rows[each.name])
                _check_settings(folder, each)
    folder.write_plan(plan, {each.name: to_toml(each.config) for each in contestants})


def saved_contestants(path: Path, plan: Mapping[str, Any]) -> list[Contestant]:
    """Those of a plan, with the settings that they began with."""
    try:
        return [
            Contestant(
                label=row["label"],
                source=row["source"],
                url=row.get("endpoint"),
                config=build(read_saved_settings(path / "models" / f"{row['name']}.toml")),
            )
            for row in plan["models"]
        ]
    except (KeyError, TypeError) as error:
        raise UserError(f"{path} holds a plan that cannot be read ({error!r}): evaluate anew") from error


def _row(contestant: Contestant) -> dict[str, Any]:
    row = {"name": contestant.name, "label": contestant.label, "source": contestant.source}
    return row if contestant.url is None else {**row, "endpoint": contestant.url}


def _check_settings(folder: EvaluationFolder, contestant: Contestant) -> None:
    old = build(read_saved_settings(folder.settings_path(contestant.name)))
    _check_same(folder, _flat(old), _flat(contestant.config))


def _flat(config: Config) -> dict[str, Any]:
    found = config.model_dump()
    flat = {f"{section}.{key}": value for section in SECTIONS for key, value in found[section].items()}
    return {key: value for key, value in flat.items() if key not in FREE}


def _check_same(folder: EvaluationFolder, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    for key, value in old.items():
        if new.get(key) != value:
            raise UserError(
                f"{folder.path} holds an evaluation with another {key} ({value}, now {new.get(key)}): "
                "choose another --out, or give what it began with"
            )


MAX_SEEDS = 1_000_000
MAX_FILE = 20_000_000
_PART = re.compile(r"(\d{1,15})(?:-(\d{1,15}))?", re.ASCII)


def read_seeds(text: str, split: Split) -> tuple[int, ...]:
    """The seeds of a list or of a file that holds one, in the order given.

    Small numbers count the tasks of the split from 0, as `turnwise play --seed` does; those from 2^40 on are seeds as
    trajectories record them, and must be of that split.
    """
    path = Path(text)
    listed = _read(path) if _is_file(path) else text
    words = [word for line in listed.splitlines() for word in re.split(r"[,\s]+", line.partition("#")[0]) if word]
    seeds = tuple(_seed(number, split) for number in _numbers(words))
    if not seeds:
        raise UserError(f"--seeds {text}: holds no seeds: give such as 3,7,10-20, or a file of them")
    if len(set(seeds)) < len(seeds):
        twice = next(seed for seed in seeds if seeds.count(seed) > 1)
        raise UserError(
            f"--seeds names {twice - FIRST_SEED[split]} twice: give each once, and --tries for more episodes"
        )
    return seeds


def write_seeds(seeds: Sequence[int]) -> str:
    """The shortest list that `read_seeds` reads back: 10-20 for a run of numbers."""
    runs: list[list[int]] = []
    for seed in seeds:
        if runs and seed == runs[-1][1] + 1:
            runs[-1][1] = seed
        else:
            runs.append([seed, seed])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a list that is too long for a file's name
        return False


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE:
            raise UserError(f"--seeds {path}: is larger than {MAX_FILE} bytes: give a list of seeds")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--seeds {path}: cannot be read: give a text file of seeds") from error


def _numbers(words: Iterable[str]) -> list[int]:
    numbers: list[int] = []
    for word in words:
        found = _PART.fullmatch(word)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if first > last:
            raise UserError(f'--seeds: "{word[:40]}" is no seed: give whole numbers and ranges, such as 3,7,10-20')
        if len(numbers) + last - first >= MAX_SEEDS:
            raise UserError(f"--seeds: more than {MAX_SEEDS}: give fewer")
        numbers += range(first, last + 1)
    return numbers


def _seed(number: int, split: Split) -> int:
    if number < SEEDS_PER_SPLIT:
        return seed_for(split, number)
    if (found := split_of_seed(number)) != split:
        raise UserError(f"--seeds: {number} is of the {found} split, not {split}: give --split {found}")
    return number
