"""Mistakes in settings, tools and stored episodes that are typed or written, in the form of `mistakes_for_tests.py`."""

from mistakes_for_tests import TRAIN_TOOLS, Mistake, other, own_reward, tools

TALK = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "left"}], REST}'


def bandit(section: str) -> dict[str, str | bytes]:
    return {"r.toml": f"[env]\nkind = 'bandit'\n{section}"}


def gguf(text: bytes) -> dict[str, str | bytes]:
    return {"x.gguf": text}


def episodes(text: str | bytes) -> dict[str, str | bytes]:
    return {"x.jsonl": text}


IN_SETTINGS = {
    "true for a number": Mistake(
        "train r.toml", ("train.steps = true: must be a whole number",), bandit("[train]\nsteps = true")
    ),
    "true in a list": Mistake("train r.toml", ("reward.weights.0 = true",), bandit("[reward]\nweights = [true]")),
    "true for a parameter": Mistake(
        "train r.toml", ("env.params.max_turns = true: give a number",), bandit("max_turns = true")
    ),
    "a fraction of a step": Mistake("train r.toml", ("train.steps = 2.5: must",), bandit("[train]\nsteps = 2.5")),
    "a list of steps": Mistake("train r.toml", ("train.steps = [1]: must",), bandit("[train]\nsteps = [1]")),
    "a list of sections": Mistake("train r.toml", ("must be a section",), {"r.toml": "[[env]]\nkind = 'bandit'"}),
    "a section twice": Mistake("train r.toml", ("Cannot declare ('env',) twice",), bandit("[env]\nkind = 'bandit'")),
    "a section mistyped": Mistake("train r.toml", ('did you mean "train"?',), bandit("[trian]\nsteps = 1")),
    "YAML": Mistake("train r.yaml", ("settings are read from FILE.toml",), {"r.yaml": "env: bandit"}),
    "an empty name": Mistake("train bandit --name ''", ("record.name '' is not a folder name",)),
    "a trainer of TRL": Mistake("train bandit --algo.preset GRPOTrainer", ('Unknown algo.preset "GRPOTrainer"',)),
    "an infinite rate": Mistake("train bandit --train.learning_rate inf", ("train.learning_rate = inf: must",)),
    "a setting twice": Mistake("train bandit --train.steps 5 --train.steps 6", ("train.steps is given twice",)),
    "a negative weight": Mistake("train bandit --env.mix.sokoban -2", ("give each environment a weight above 0",)),
    "tool is a generator": Mistake(
        TRAIN_TOOLS,
        ("The tool price is a generator: return a value",),
        tools(functions='def price(fruit: str):\n    """Price."""\n    yield 1\n'),
    ),
    "tool of an unknown type": Mistake(
        TRAIN_TOOLS,
        ("'Fruit' is not defined. Import it",),
        tools(functions='def price(fruit: "Fruit"):\n    """Price."""\n'),
    ),
    "tool of a wrong pattern": Mistake(
        TRAIN_TOOLS, ("not a regular expression",), other('"exact_match"', '[{use = "regex", pattern = "("}]')
    ),
    "tool of a missing index": Mistake(
        TRAIN_TOOLS, ("INDEX does not exist",), other('["tools.py:price"]', '[{use = "search", index = "INDEX"}]')
    ),
    "reward without a colon": Mistake(
        TRAIN_TOOLS, ("expected ':' (reward.py, line 1)",), own_reward("def score(answer, row) return 1")
    ),
    "episodes in UTF-16": Mistake(
        "train bandit --data x.jsonl", ("x.jsonl is not UTF-8 text. Save it as UTF-8",), episodes("{}".encode("utf-16"))
    ),
    "episodes without rewards": Mistake(
        "train bandit --data x.jsonl",
        ("line 1 has no reward", "algo.preset bc"),
        episodes(TALK.replace(", REST", "")),
    ),
    "episodes with too many rewards": Mistake(
        "train bandit --data x.jsonl",
        ("rewards must be a list of 1 numbers",),
        episodes(TALK.replace("REST", '"rewards": [1, 2]')),
    ),
    "keep the best": Mistake(
        "train bandit --data x.jsonl --data.keep best", ("data.keep = best: must be one of",), episodes("{}")
    ),
    "episodes of another format": Mistake(
        "train bandit --data x.jsonl", ("x.jsonl line 1 has only the columns text",), episodes('{"text": "x"}')
    ),
    "episodes with a broken turn": Mistake(
        "train bandit --data x.jsonl", ("x.jsonl line 1: ",), episodes('{"turns": [{"action_ids": 3}]}')
    ),
    "episodes with a broken line": Mistake(
        "train bandit --data x.jsonl", ("x.jsonl line 1 is not valid JSON",), episodes("{")
    ),
    "episodes in an empty file": Mistake("train bandit --data x.jsonl", ("has no episodes",), episodes("")),
    "episodes in a folder without any": Mistake("train bandit --data x", ("x has no .jsonl",), {"x/y": ""}),
    "model in an empty folder": Mistake(
        "train bandit --model.name ./x", ("x is not a model folder, it has no config.json",), {"x/y": ""}
    ),
    "model in a text file": Mistake("sft bandit --model.name x.txt", ("x.txt is not a model folder",), {"x.txt": ""}),
    "model with a broken configuration": Mistake(
        "eval x bandit", ("x/config.json is not valid JSON",), {"x/config.json": "{"}
    ),
    "model in another format": Mistake("train bandit --model.name x.gguf", ("is not a GGUF file",), gguf(b"PK" * 40)),
    "model cut in its first bytes": Mistake("eval x.gguf bandit", ("or is damaged",), gguf(b"GGUF\3\0\0\0")),
    "model of an unknown version": Mistake(
        "serve --model.name x.gguf", ("or is damaged",), gguf(b"GGUF\x63\0\0\0" + b"\1" * 32)
    ),
    "engine that is not installed": Mistake("train bandit --engine vllm", ("Run `pip install vllm`",)),
    "preset of a default": Mistake("train bandit --algo.preset grop", ("GRPO is the default", "algo.advantage grpo")),
    "preset mistyped": Mistake("train bandit --algo.preset gsop", ('did you mean "gspo"?',)),
    "tool mistyped": Mistake(TRAIN_TOOLS, ('did you mean "python"?',), other("tools.py:price", "pyhton")),
}
WITHOUT_TORCH = [name for name in IN_SETTINGS if name.startswith(("episodes ", "model ", "engine ", "preset "))]
"""Reported before torch is imported."""
