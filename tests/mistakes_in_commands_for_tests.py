"""Mistakes in other commands than train and sft, in the form of `mistakes_for_tests.py`. None needs torch."""

from mistakes_for_tests import Mistake

RUN: dict[str, str | bytes] = {"run/config.toml": "[env]\nkind = 'bandit'\n[model]\nname = 'tiny'\n"}
"""A run that recorded nothing."""
TEXT: dict[str, str | bytes] = {"x.txt": "x"}

IN_COMMANDS = {
    "data of a text file": Mistake("data inspect x.txt", ("x.txt does not end in .jsonl",), TEXT),
    "data of an empty folder": Mistake("data inspect x", ("x has no .jsonl",), {"x/y": ""}),
    "data of an empty file": Mistake("data inspect x.jsonl", ("x.jsonl has no episodes",), {"x.jsonl": ""}),
    "data of text": Mistake(
        "data inspect x.jsonl", ("line 1 is not a trajectory of a run",), {"x.jsonl": '{"messages": []}'}
    ),
    "data of a run without episodes": Mistake("data export run --to new", ("recorded no training episodes",), RUN),
    "data of a run with broken settings": Mistake(
        "data inspect run", ("run/config.toml is not valid TOML",), {"run/config.toml": "x = ["}
    ),
    "data into a file": Mistake("data export run --to x.txt", ("x.txt already exists",), {**RUN, **TEXT}),
    "data below a file": Mistake(
        "data export run --to x.txt/y", ("Cannot write x.txt/y (Not a directory). Choose another",), {**RUN, **TEXT}
    ),
    "data evaluated on nothing": Mistake("data evaluate run --on nowhere", ("nowhere does not exist",), RUN),
    "model below a file": Mistake("export run --to x.txt/y", ("Cannot write x.txt/y",), {**RUN, **TEXT}),
    "adapter below a file": Mistake("merge run --into x.txt/y", ("Cannot write x.txt/y",), {**RUN, **TEXT}),
    "seeds in a file that is missing": Mistake(
        "eval tiny bandit --seeds x.txt", ('"x.txt" is neither a seed nor a file that exists',)
    ),
    "seeds backwards": Mistake("eval tiny bandit --seeds 5-2", ('"5-2" is not a seed',)),
    "no tries": Mistake("eval tiny bandit --tries 0", ("tries 0: must be 1 or more",)),
    "serve without a model": Mistake("serve", ("There is no model to serve: add --model.name with a run or a model",)),
    "calls into a folder": Mistake("serve --out x", ("--out x is a folder. Name a file",), {"x/y": ""}),
    "calls below a file": Mistake("serve --out x.txt/y", ("Cannot write x.txt/y (Not a directory)",), TEXT),
}
