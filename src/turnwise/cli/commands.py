"""The commands: their modules and help texts. The list of commands shows the first line of each help text."""

from dataclasses import dataclass

from cyclopts import Group

TRAIN = Group("Train and evaluate", sort_key=0)
INSPECT = Group("Inspect", sort_key=1)
SEARCH = Group("Search indexes", sort_key=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    group: Group
    path: str
    """module:app, imported when the command or its --help runs."""
    help: str


COMMANDS = {
    "train": Command(
        group=TRAIN,
        path="turnwise.cli.train:train_app",
        help="""\
Train an agent with reinforcement learning and write a run folder.

turnwise train frozen_lake
turnwise train sokoban --algo.advantage gae --train.steps 100
turnwise train my_env.py:GuessNumber --seeds 0,1,2 --max-minutes 10
turnwise train frozen_lake --data RUN --algo.preset awr
turnwise train --from RUN --train.learning_rate 3e-4
turnwise train --resume RUN""",
    ),
    "sft": Command(
        group=TRAIN,
        path="turnwise.cli.train:sft_app",
        help="""\
Fine-tune on demonstrations from a solver, a run or a file.

turnwise sft sokoban
turnwise sft sokoban --demos RUN --model.name smollm2-135m --lora.rank 16
turnwise sft sokoban --data chats.jsonl --epochs 3
turnwise sft --data chats.jsonl --model.name Qwen/Qwen2.5-0.5B-Instruct
turnwise train sokoban --model.name RUN     continue with reinforcement learning""",
    ),
    "eval": Command(
        group=TRAIN,
        path="turnwise.cli.evaluate:eval_app",
        help="""\
Measure success rates of runs, models and endpoints, with intervals.

turnwise eval RUN
turnwise eval RUN frozen_lake --env.params.size 6
turnwise eval RUN smollm2-135m sokoban --episodes 64 --tries 4
turnwise eval sokoban --endpoint http://localhost:8000/v1 --model NAME
turnwise eval --resume FOLDER""",
    ),
    "serve": Command(
        group=TRAIN,
        path="turnwise.cli.serve:serve_app",
        help="""\
Serve a model to agents through the APIs of OpenAI and Anthropic.

turnwise serve --model.name RUN
turnwise serve --model.name Qwen/Qwen2.5-0.5B-Instruct --port 8000
turnwise serve --model.name RUN --rollout.temperature 0.7
turnwise serve --train --model.name Qwen/Qwen2.5-0.5B-Instruct --name my-agent""",
    ),
    "export": Command(
        group=TRAIN,
        path="turnwise.cli.models:export_app",
        help="""\
Save a run's model as a Hugging Face folder.

turnwise export RUN --to FOLDER""",
    ),
    "merge": Command(
        group=TRAIN,
        path="turnwise.cli.models:merge_app",
        help="""\
Merge a LoRA adapter into its base model.

turnwise merge RUN --into FOLDER
turnwise merge ADAPTER --into FOLDER""",
    ),
    "view": Command(
        group=INSPECT,
        path="turnwise.cli.view:view_app",
        help="""\
Browse runs in a web browser: curves, trajectories, tokens.

turnwise view
turnwise view runs/NAME --port 8000 --open""",
    ),
    "watch": Command(
        group=INSPECT,
        path="turnwise.cli.view:watch_app",
        help="""\
Plot a running run's curves in the terminal.

turnwise watch RUN""",
    ),
    "report": Command(
        group=INSPECT,
        path="turnwise.cli.view:report_app",
        help="""\
Write a run or an evaluation as one HTML file.

turnwise report RUN
turnwise report runs/eval-NAME --out report.html""",
    ),
    "play": Command(
        group=INSPECT,
        path="turnwise.cli.environments:play_app",
        help="""\
Play an environment in the terminal, as the agent sees it.

turnwise play sokoban --seed 3
turnwise play frozen_lake --env.params.slippery true
turnwise play my_env.py:GuessNumber""",
    ),
    "data": Command(
        group=INSPECT,
        path="turnwise.cli.data:data_app",
        help="""\
Inspect, export and evaluate on the episodes that runs recorded.

turnwise data inspect RUN
turnwise data export RUN --to FOLDER""",
    ),
    "recipes": Command(
        group=INSPECT, path="turnwise.cli.environments:recipes_app", help="List the recipes for train, or print one."
    ),
    "envs": Command(
        group=INSPECT,
        path="turnwise.cli.environments:envs_app",
        help="List the environments, describe one, or start a new one.",
    ),
    "models": Command(group=INSPECT, path="turnwise.cli.models:models_app", help="List the models with a short name."),
    "doctor": Command(
        group=INSPECT,
        path="turnwise.cli.doctor:doctor_app",
        help="""\
Check this machine, or plan GPU memory for a model.

turnwise doctor
turnwise doctor --plan --model Qwen/Qwen2.5-1.5B-Instruct --gpu-memory 24
turnwise doctor --plan --shape qwen2.5-7b --gpu-memory 80 --lora.rank 16""",
    ),
    "cluster": Command(
        group=INSPECT,
        path="turnwise.cli.cluster:cluster_app",
        help="""\
Plan a cluster: what goes where, memory per GPU, step time.

turnwise cluster plan math_code --gpus 64
turnwise cluster plan math_code --gpus 8 --gpu H200 --model.name qwen2.5-7b
turnwise cluster plan math_code --gpus 64 --lora.rank 16 --rollout.max_staleness 2""",
    ),
    "index": Command(
        group=SEARCH,
        path="turnwise.cli.search:index_app",
        help="""\
Build an index of documents for the search tool.

turnwise index docs notes.md rows.jsonl --to INDEX
turnwise index docs --to INDEX --dense sentence-transformers/all-MiniLM-L6-v2""",
    ),
    "search": Command(
        group=SEARCH,
        path="turnwise.cli.search:search_app",
        help="""\
Search an index, or serve it to runs over HTTP.

turnwise search INDEX "how to read a file"
turnwise search INDEX --serve --port 8080""",
    ),
}
