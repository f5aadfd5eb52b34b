"""Mistakes of new users: the files, the command, and what its one line must say."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

ENV = '''import turnwise as tw


class Guess(tw.TextEnv):
    """Guess."""

    action_names = ("1", "2", "3")

    def reset(self, rng):
        self.secret = str(rng.randint(1, 3))
        return "1, 2 or 3?"

    def step(self, action):
        return tw.won() if action == self.secret else tw.lost()
'''
RESET = 'return "1, 2 or 3?"'
STEP = "return tw.won() if action == self.secret else tw.lost()"
NAMES = 'action_names = ("1", "2", "3")'
TRAIN = "train env.py:Guess --model.warmup_steps 0 --rollout.trial_s 20"

TOOLS = """
[env]
kind = "tools"
tasks = "rows.jsonl"
tools = ["tools.py:price"]
reward = "exact_match"
style = "answer"
"""
TOOL = '''def price(fruit: str) -> int:
    """The price of a fruit."""
    return len(fruit)
'''
ROWS = "".join(json.dumps({"question": f"Price of {count} figs?", "answer": str(count)}) + "\n" for count in range(40))
TRAIN_TOOLS = "train tools.toml --model.warmup_steps 0"

REWARD = "train bandit --reward.functions reward.py:score --model.warmup_steps 0"
ADVANTAGE = "train bandit --algo.advantage own.py:Own --rollout.groups 2 --rollout.group_size 2 --train.mini_batch 4"


@dataclass(frozen=True, slots=True)
class Mistake:
    """A command in a folder with some files, and parts of its message."""

    typed: str
    says: tuple[str, ...]
    files: Mapping[str, str | bytes] = field(default_factory=dict)


def env(*changes: tuple[str, str]) -> dict[str, str | bytes]:
    """Return the environment with other text in place of some of it."""
    text = ENV
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    return {"env.py": text}


def method(text: str) -> dict[str, str | bytes]:
    """Return the environment with another method or attribute."""
    return env(("    def reset", f"    {text}\n\n    def reset"))


def tools(**files: str | bytes) -> dict[str, str | bytes]:
    """Return the settings, rows and tools, with other files in place of some."""
    names = {"settings": "tools.toml", "rows": "rows.jsonl", "functions": "tools.py", "reward": "reward.py"}
    given = {names[name]: text for name, text in files.items()}
    return {"tools.toml": TOOLS, "rows.jsonl": ROWS, "tools.py": TOOL, **given}


def other(before: str, after: str, **files: str | bytes) -> dict[str, str | bytes]:
    """Return the files with another value in the settings."""
    assert before in TOOLS
    return tools(settings=TOOLS.replace(before, after), **files)


def rows(text: str | bytes, name: str = "rows.jsonl") -> dict[str, str | bytes]:
    return {**tools(settings=TOOLS.replace("rows.jsonl", name)), name: text}


def own_reward(text: str) -> dict[str, str | bytes]:
    return other('"exact_match"', '"reward.py:score"', reward=text)


def protocol_env(
    start: str = "return tw.Observation(messages=(tw.user('go'),))", step: str = "return tw.StepResult()"
) -> dict[str, str | bytes]:
    return {
        "env.py": f"""import turnwise as tw
class Guess:
    def __init__(self, task, rng): pass
    async def start(self): {start}
    async def step(self, action): {step}
    async def close(self): pass
    def random_answer(self, rng): return "1"
"""
    }


TRIAL = "(in a trial episode of random answers)"

ENVIRONMENTS = {
    "step returns nothing": Mistake(TRAIN, ("Guess.step returned None", "return goes_on(text)"), env((STEP, "pass"))),
    "step returns a tuple": Mistake(
        TRAIN, ("Guess.step returned ('obs', 1.0, True, False, {})",), env((STEP, "return 'obs', 1.0, True, False, {}"))
    ),
    "step returns a text": Mistake(TRAIN, ("Guess.step returned the text 'no'",), env((STEP, "return 'no'"))),
    "step forgets to call": Mistake(TRAIN, ("Guess.step returned <function won",), env((STEP, "return tw.won"))),
    "step yields": Mistake(TRAIN, ("Guess.step returned <generator",), env((STEP, "yield tw.won()"))),
    "step raises": Mistake(
        TRAIN, ("Guess.step raised RuntimeError: away at env.py:14", TRIAL), env((STEP, "raise RuntimeError('away')"))
    ),
    "step raises pages": Mistake(
        TRAIN,
        ("RuntimeError: one two x", "...", "at env.py:14"),
        env((STEP, "raise RuntimeError('one\\ntwo\\n' + 'x' * 9999)")),
    ),
    "step exits": Mistake(TRAIN, ("Guess.step raised SystemExit: 0 at env.py:14",), env((STEP, "raise SystemExit(0)"))),
    "step recurses": Mistake(TRAIN, ("RecursionError", "at env.py:14"), env((STEP, "return self.step(action)"))),
    "step mistypes won": Mistake(TRAIN, ("has no attribute 'win' at env.py:14",), env((STEP, "return tw.win()"))),
    "step without action": Mistake(TRAIN, ("write def step(self, action)",), env(("step(self, action)", "step(self)"))),
    "reset without rng": Mistake(TRAIN, ("write def reset(self, rng)",), env(("reset(self, rng)", "reset(self)"))),
    "reset returns nothing": Mistake(TRAIN, ("Guess.reset returned None",), env((RESET, "pass"))),
    "reset returns a number": Mistake(TRAIN, ("Guess.reset returned a value of type int",), env((RESET, "return 5"))),
    "reset returns a tuple": Mistake(
        TRAIN, ("Guess.reset returned a tuple with a value of type dict",), env((RESET, "return 'o', {}"))
    ),
    "reward is a text": Mistake(
        TRAIN, ("Guess.step returned the text '1' as the reward",), env((STEP, "return tw.won(reward='1')"))
    ),
    "reward is NaN": Mistake(TRAIN, ("returned nan as the reward",), env((STEP, "return tw.won(reward=float('nan'))"))),
    "part of the reward": Mistake(
        TRAIN,
        ("Guess.step returned the text 'b' as the part 'a' of the reward",),
        env((STEP, "return tw.Outcome(text='', reward=1.0, over=True, success=True, parts={'a': 'b'})")),
    ),
    "negative max_turns": Mistake(TRAIN, ("Guess.max_turns = -1: must be greater",), method("max_turns = -1")),
    "max_turns in words": Mistake(TRAIN, ("Guess.max_turns = 'five': must be",), method("max_turns = 'five'")),
    "names are a text": Mistake(TRAIN, ('write action_names = ("up",)',), env((NAMES, 'action_names = "up"'))),
    "names are a set": Mistake(
        TRAIN, ("Guess.action_names is {'up'}: write a tuple",), env((NAMES, "action_names = {'up'}"))
    ),
    "names are numbers": Mistake(
        TRAIN, ("Guess.action_names contains 1: write texts",), env((NAMES, "action_names = (1, 2)"))
    ),
    "names with spaces": Mistake(
        TRAIN, ("contains ' up', which no answer can match",), env((NAMES, "action_names = (' up', 'down')"))
    ),
    "names twice": Mistake(TRAIN, ("contains 'up' twice",), env((NAMES, "action_names = ('up', 'Up')"))),
    "init without arguments": Mistake(
        TRAIN, ("def __init__(self, params=None, rng=None)",), method("def __init__(self):\n        self.size = 3")
    ),
    "init with a size first": Mistake(
        TRAIN, ("Guess.__init__ has other arguments",), method("def __init__(self, size, params=None, rng=None): pass")
    ),
    "init without super": Mistake(
        TRAIN,
        ("Guess.__init__ does not call super().__init__(params, rng)",),
        method("def __init__(self, *given, **named): pass"),
    ),
    "params without a base": Mistake(
        TRAIN, ("Guess.Params is not a pydantic model",), method("class Params:\n        size: int = 3")
    ),
    "default of a parameter": Mistake(
        TRAIN,
        ("Guess.Params.size = 'big': must be",),
        method("class Params(tw.StrictParams):\n        size: int = 'big'"),
    ),
    "rules as a text": Mistake(TRAIN, ("Guess.rules is not a method",), method("rules = 'Say 1.'")),
    "rules return nothing": Mistake(TRAIN, ("Guess.rules returned None",), method("def rules(self): pass")),
    "state_key is a list": Mistake(
        TRAIN, ("Guess.state_key returned [1]: return a text or None",), method("def state_key(self): return [1]")
    ),
    "random_action without rng": Mistake(
        TRAIN, ("write def random_action(self, rng)",), method("def random_action(self): return '1'")
    ),
    "random_action is a number": Mistake(
        TRAIN, ("Guess.random_action returned 1: return a text",), method("def random_action(self, rng): return 1")
    ),
    "random_answer is a number": Mistake(
        TRAIN, ("Guess.random_answer returned 1: return a text",), method("def random_answer(self, rng): return 1")
    ),
    "draw returns SVG": Mistake(
        TRAIN, ("Guess.draw returned the text '<svg/>'",), method("def draw(self): return '<svg/>'")
    ),
    "solver returns a text": Mistake(
        "sft env.py:Guess --count 2 --model.warmup_steps 1",
        ("Guess.solve returned the text '1': return a list of texts",),
        method("def solve(self): return '1'"),
    ),
    "no solver": Mistake("sft env.py:Guess", ("Guess has no solver",), env()),
    "syntax": Mistake(TRAIN, ("SyntaxError", "(env.py, line 14)"), env((STEP, "return tw.won("))),
    "missing package": Mistake(
        TRAIN, ("No module named 'numppy' at env.py:1",), env(("import turnwise", "import numppy, turnwise"))
    ),
    "Latin-1": Mistake(
        TRAIN,
        ("env.py could not be loaded: SyntaxError",),
        {"env.py": ENV.replace("Guess.", "Größe.").encode("latin-1")},
    ),
    "exit at import": Mistake(TRAIN, ("SystemExit",), env(("import turnwise as tw", "import turnwise as tw\nexit()"))),
    "an object": Mistake(
        "train env.py:guess", ("give Guess itself, not Guess()",), {"env.py": f"{ENV}\n\nguess = Guess()\n"}
    ),
    "a wrong class": Mistake("train env.py:Gues", ('did you mean "Guess"?',), env()),
    "no class": Mistake("train env.py", ("write env.py:Class",), env()),
    "a module and a class": Mistake("train env.Guess", ("did you mean env.py:Guess?",), env()),
    "no file": Mistake("train envv.py:Guess", ("envv.py does not exist",), env()),
    "start returns a text": Mistake(
        TRAIN, ("Guess.start returned the text 'go': return a tw.Observation",), protocol_env(start="return 'go'")
    ),
    "start without messages": Mistake(
        TRAIN, ("return at least one message",), protocol_env(start="return tw.Observation(messages=())")
    ),
    "step returns a dict": Mistake(
        TRAIN, ("Guess.step returned {'a': 1}: return a tw.StepResult",), protocol_env(step="return {'a': 1}")
    ),
    "eval of a bug": Mistake(
        "eval tiny env.py:Guess --episodes 2",
        ("failed during the warm-up of tiny: Guess.step returned None",),
        env((STEP, "pass")),
    ),
}

FILES = {
    "a section as a text": Mistake(
        "train r.toml",
        ("r.toml: model = 'tiny': must be a section",),
        {"r.toml": "model = 'tiny'\n[env]\nkind = 'bandit'"},
    ),
    "an environment as a text": Mistake(
        "train r.toml", ("r.toml: env = 'bandit': must be a section",), {"r.toml": "env = 'bandit'"}
    ),
    "a section as a number": Mistake(
        "train r.toml", ("r.toml: context = 3: must be a section",), {"r.toml": "context = 3\n[env]\nkind = 'bandit'"}
    ),
    "TOML in UTF-16": Mistake(
        "train r.toml", ("r.toml is not UTF-8 text",), {"r.toml": "[env]\nkind = 'bandit'".encode("utf-16")}
    ),
    "TOML syntax": Mistake("train r.toml", ("r.toml is not valid TOML", "line 1"), {"r.toml": "[env\n"}),
    "tool without docstring": Mistake(
        TRAIN_TOOLS, ("price has no docstring",), tools(functions="def price(fruit: str): return 1")
    ),
    "tool without types": Mistake(
        TRAIN_TOOLS, ("price has no type for fruit",), tools(functions=TOOL.replace(": str", ""))
    ),
    "tool of an array": Mistake(
        TRAIN_TOOLS,
        ("The tool price: a model cannot write a numpy.ndarray for fruit: annotate it with str",),
        tools(functions="import numpy\n" + TOOL.replace(": str", ": numpy.ndarray")),
    ),
    "tool of a function": Mistake(
        TRAIN_TOOLS,
        ("a model cannot write a collections.abc.Callable for fruit",),
        tools(functions="from collections.abc import Callable\n" + TOOL.replace(": str", ": Callable")),
    ),
    "tool with any arguments": Mistake(
        TRAIN_TOOLS, ("takes *fruit",), tools(functions=TOOL.replace("fruit: str", "*fruit: str"))
    ),
    "tool is a class": Mistake(TRAIN_TOOLS, ("price is a class, not a function",), tools(functions="class price: 'x'")),
    "tool with a wrong rule": Mistake(
        TRAIN_TOOLS,
        ('did you mean "timeout_s"?',),
        tools(functions=f"import turnwise as tw\n@tw.tool(timeout=3)\n{TOOL}"),
    ),
    "tool with a syntax error": Mistake(TRAIN_TOOLS, ("tools.py, line 1",), tools(functions="def price(\n")),
    "tool with a missing package": Mistake(
        TRAIN_TOOLS, ("No module named 'requestz' at tools.py:1",), tools(functions=f"import requestz\n{TOOL}")
    ),
    "two tools of a name": Mistake(
        TRAIN_TOOLS,
        ('Two tools are called "price"',),
        {**other('["tools.py:price"]', '["tools.py:price", "more.py:price"]'), "more.py": TOOL},
    ),
    "no such tool": Mistake(
        TRAIN_TOOLS, ('no function "prize"', 'did you mean "price"?'), other("tools.py:price", "tools.py:prize")
    ),
    "rows are missing": Mistake(
        TRAIN_TOOLS, ("env.params.tasks", "x.jsonl does not exist"), other("rows.jsonl", "x.jsonl")
    ),
    "rows with other columns": Mistake(
        TRAIN_TOOLS, ("rows.csv line 2 has no question: it has q, a; add one of",), rows("q,a\n1,2\n", "rows.csv")
    ),
    "rows with semicolons": Mistake(
        TRAIN_TOOLS, ("it has question;answer; add",), rows("question;answer\na;1\n", "rows.csv")
    ),
    "rows with a broken line": Mistake(
        TRAIN_TOOLS,
        ("rows.jsonl line 41 is not valid JSON (Expecting value, column 28)",),
        rows(ROWS + '{"question": "x", "answer": \n'),
    ),
    "rows are empty": Mistake(TRAIN_TOOLS, ("rows.jsonl has no rows",), rows("")),
    "rows in Latin-1": Mistake(
        TRAIN_TOOLS, ("rows.jsonl is not UTF-8 text",), rows('{"question": "Größe?"}'.encode("latin-1"))
    ),
    "rows are lists": Mistake(TRAIN_TOOLS, ("line 1 is ['x', 1], not a JSON object",), rows('["x", 1]\n')),
    "rows with null": Mistake(TRAIN_TOOLS, ("line 1: question is empty",), rows('{"question": null, "answer": "1"}\n')),
    "rows without text": Mistake(
        TRAIN_TOOLS, ("line 1: question is empty",), rows('{"question": " ", "answer": "1"}\n')
    ),
    "rows with equal questions": Mistake(
        TRAIN_TOOLS, ("its 1 different questions",), rows('{"question": "x", "answer": "1"}\n' * 40)
    ),
    "rows with a column twice": Mistake(
        TRAIN_TOOLS, ("rows.csv has two columns called 'answer'",), rows("question,answer,answer\na,1,2\n", "rows.csv")
    ),
    "rows with another split": Mistake(
        TRAIN_TOOLS, ("line 1: unknown split 'dev'",), rows('{"question": "x", "answer": "1", "split": "dev"}\n')
    ),
    "rows without the answer": Mistake(
        TRAIN_TOOLS, ('column "answer", which is missing in row 1',), rows(ROWS.replace("answer", "solution"))
    ),
    "reward returns nothing": Mistake(
        TRAIN_TOOLS, ("returned None (is a return missing?) (reward.py:1)",), own_reward("def score(answer, row): pass")
    ),
    "reward returns a text": Mistake(
        TRAIN_TOOLS, ("returned the text 'good' (reward.py:1)",), own_reward("def score(answer, row): return 'good'")
    ),
    "reward reads another column": Mistake(
        TRAIN_TOOLS,
        ("KeyError: 'solution' at reward.py:1", "there are answer, question"),
        own_reward("def score(answer, row): return row['solution']"),
    ),
    "reward of the answer alone": Mistake(
        TRAIN_TOOLS, ("takes answer alone",), own_reward("def score(answer): return 1")
    ),
    "reward is mistyped": Mistake(TRAIN_TOOLS, ('did you mean "exact_match"?',), other("exact_match", "exactmatch")),
    "reward of another length": Mistake(
        REWARD,
        ("the reward score returned [1.0, 1.0", "one for each of 1 turns"),
        {"reward.py": "def score(trajectory): return [1.0] * 99"},
    ),
    "reward is a dict": Mistake(
        REWARD, ("the reward score returned {'a': 1}",), {"reward.py": "def score(trajectory): return {'a': 1}"}
    ),
    "reward is infinite": Mistake(
        REWARD,
        ("the reward score returned inf (reward.py:1)",),
        {"reward.py": "def score(trajectory): return float('inf')"},
    ),
    "reward takes two": Mistake(
        REWARD, ("must take one argument",), {"reward.py": "def score(prompt, completion): return 1"}
    ),
    "reward file is missing": Mistake(REWARD, ("reward.py does not exist",)),
    "conversations are broken": Mistake(
        "sft --data talks.jsonl", ("talks.jsonl line 1 is not valid JSON",), {"talks.jsonl": "{"}
    ),
    "conversations of another format": Mistake(
        "sft --data talks.jsonl", ("line 1 has only the columns text",), {"talks.jsonl": '{"text": "x"}'}
    ),
    "conversations of a robot": Mistake(
        "sft --data talks.jsonl",
        ("message 1 has the role 'robot'",),
        {"talks.jsonl": '{"messages": [{"role": "robot", "content": "x"}]}'},
    ),
    "conversations are missing": Mistake("sft --data talks.jsonl", ("talks.jsonl does not exist",)),
    "conversations as text": Mistake("sft --data talks.txt", ("ends in .jsonl, .json, .csv",), {"talks.txt": "x"}),
    "demonstrations of no run": Mistake("sft bandit --demos nowhere", ('No run "nowhere"',)),
    "runs is a file": Mistake("train bandit", ("Cannot write runs (Not a directory)",), {"runs": ""}),
    "a folder in a file": Mistake("sft bandit --record.folder x/y", ("Cannot write x/y (Not a directory)",), {"x": ""}),
    "a taken folder": Mistake(
        "export run --to taken", ("taken already exists",), {"run/config.toml": "", "taken/x": ""}
    ),
    "results in a file": Mistake("eval tiny bandit --out taken", ("taken is a file, not a folder",), {"taken": ""}),
    "results beside others": Mistake("eval tiny bandit --out taken", ("taken has other files (x)",), {"taken/x": ""}),
    "a run without settings": Mistake(
        "train --resume run", ("run/config.toml is incomplete: it has no section env",), {"run/config.toml": ""}
    ),
    "a run as a recipe": Mistake(
        "train run", ("run is a run, not an environment", "--from run"), {"run/config.toml": ""}
    ),
    "a run as an environment": Mistake("play run", ("run is a run, not an environment",), {"run/config.toml": ""}),
    "a run in a file": Mistake(
        "export run --to x/y", ("Cannot write x/y (Not a directory)",), {"run/config.toml": "", "x": ""}
    ),
    "a report over a folder": Mistake(
        "report run --out taken", ("taken is a folder. Name a file",), {"run/config.toml": "", "taken/x": ""}
    ),
    "a run that is none": Mistake(
        "train --resume folder", ("folder is not a run: it has no config.toml",), {"folder/x": ""}
    ),
}

MISTAKES = {**ENVIRONMENTS, **FILES}
