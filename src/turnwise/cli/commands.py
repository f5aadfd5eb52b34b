"""The commands: where each lives, and its help. The first line is what the list of commands shows."""

from dataclasses import dataclass

from cyclopts import Group

WORK = Group("Work", sort_key=0)
LOOK = Group("Look around", sort_key=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    group: Group
    path: str
    """Imported when the command runs, or its help is asked for."""
    help: str


COMMANDS = {
    "train": Command(
        group=WORK,
        path="turnwise.cli.train:app",
        help="""\
Train an agent; leaves a run folder.

turnwise train frozen_lake
turnwise train sokoban --algo.advantage gae --train.steps 100
turnwise train my_env.py:GuessNumber --seeds 0,1,2 --max_minutes 10
turnwise train --from RUN --train.learning_rate 3e-4
turnwise train --resume RUN""",
    ),
    "sft": Command(
        group=WORK,
        path="turnwise.cli.sft:app",
        help="""\
Imitate a solver, a run's own successes, or talks from a file.

turnwise sft sokoban
turnwise sft sokoban --demos RUN --model.name smollm2-135m --lora.rank 16
turnwise sft sokoban --demos talks.jsonl --epochs 3
turnwise train sokoban --model.name RUN     reinforcement learning from there""",
    ),
    "eval": Command(
        group=WORK,
        path="turnwise.cli.evaluate:app",
        help="""\
Success rates of runs, models and endpoints, with their intervals.

turnwise eval RUN
turnwise eval RUN frozen_lake --env.params.size 6
turnwise eval RUN smollm2-135m sokoban --episodes 64 --tries 4
turnwise eval sokoban --endpoint http://localhost:8000/v1 --model NAME
turnwise eval --resume FOLDER""",
    ),
    "play": Command(
        group=WORK,
        path="turnwise.cli.play:app",
        help="""\
Play an environment yourself, as the agent sees it.

turnwise play sokoban --seed 3
turnwise play frozen_lake --env.params.slippery true
turnwise play my_env.py:GuessNumber""",
    ),
    "export": Command(
        group=WORK,
        path="turnwise.cli.export:app",
        help="""\
Write a run's model as a plain Hugging Face folder.

turnwise export RUN --to FOLDER""",
    ),
    "merge": Command(
        group=WORK,
        path="turnwise.cli.merge:app",
        help="""\
Fold an adapter into its base model: a plain Hugging Face folder.

turnwise merge RUN --into FOLDER
turnwise merge ADAPTER --into FOLDER""",
    ),
    "index": Command(
        group=WORK,
        path="turnwise.cli.index:app",
        help="""\
Build an index of files for the tool search.

turnwise index docs notes.md rows.jsonl --to INDEX
turnwise index docs --to INDEX --dense sentence-transformers/all-MiniLM-L6-v2""",
    ),
    "search": Command(
        group=LOOK,
        path="turnwise.cli.search:app",
        help="""\
Search an index, or serve it to runs.

turnwise search INDEX "how to read a file"
turnwise search INDEX --serve --port 8080""",
    ),
    "view": Command(
        group=LOOK,
        path="turnwise.cli.view:app",
        help="""\
Show runs in a browser: curves, every trajectory, every token.

turnwise view
turnwise view runs/NAME --port 8000 --open""",
    ),
    "watch": Command(
        group=LOOK,
        path="turnwise.cli.watch:app",
        help="""\
Show a run's curves in the terminal while it goes on.

turnwise watch RUN""",
    ),
    "report": Command(
        group=LOOK,
        path="turnwise.cli.report:app",
        help="""\
Write a run or an evaluation as one HTML file.

turnwise report RUN
turnwise report runs/eval-NAME --out report.html""",
    ),
    "recipes": Command(
        group=LOOK, path="turnwise.cli.recipes:app", help="List the presets that train takes, or show one."
    ),
    "envs": Command(
        group=LOOK, path="turnwise.cli.envs:app", help="List the environments, show one, or write a new one."
    ),
    "models": Command(group=LOOK, path="turnwise.cli.models:app", help="List the models that have a short name."),
    "doctor": Command(
        group=LOOK,
        path="turnwise.cli.doctor:app",
        help="""\
Check this machine, or plan a GPU's memory.

turnwise doctor
turnwise doctor --plan --model Qwen/Qwen2.5-1.5B-Instruct --gpu-memory 24
turnwise doctor --plan --shape qwen2.5-7b --gpu-memory 80 --lora.rank 16""",
    ),
}
