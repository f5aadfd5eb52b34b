"""Numeric answers with references, correct and incorrect, for all comparisons of answers."""

HASTY_WORKER = """
import math_verify
from turnwise.rewards import math_verify_worker as worker
worker._is_equal(math_verify, "x, 1", "1, x")  # imports and builds its parser
worker.TIME_LIMIT_S = {}
worker.main()
"""
"""Program of a worker of math-verify that gives up after so many seconds."""
QUICK_WORKER = r"""
import re, sys, time, types
def parse(text, *_, **__):
    if "sum" in text:
        time.sleep(600)
    return sorted(re.findall(r"\d", text))
verify = lambda one, other, **_: one == other
stand_in = types.SimpleNamespace(LatexExtractionConfig=lambda: None, parse=parse, verify=verify)
sys.modules["math_verify"] = stand_in
from turnwise.rewards.math_verify_worker import main; main()
"""
"""Program of a worker that starts at once, without math-verify: it compares digits, and hangs on sums."""

RIGHT = [
    ("123456789.0", "123456789"),
    ("-12.50", "-25/2"),
    ("0.75", "3/4"),
    ("12,345.5", "24691/2"),
    ("3", "3.0"),
    ("0.333333", "1/3"),
    ("0.166667", "1/6"),
    ("0.33333333333333337", "1/3"),
    ("17636684.142857142", "123456789/7"),
    ("3.14159", "pi"),
    ("314159265.36", "100000000 pi"),
    ("0.30000000000000004", "0.3"),
    ("123456789.54", "123456789.5"),
    ("0.333333333x", "x/3"),
]
"""Answer, reference."""
WRONG = [
    ("123456849.0", "123456789"),
    ("123456790.0", "123456789"),
    ("123456789.4", "123456789"),
    ("9007199254740993.0", "9007199254740992"),
    ("123456849.0", "123456789.0"),
    ("1234567890123457.0", "1234567890123456.0"),
    ("123456849.5", "123456789.5"),
    ("123456849.0x", "123456789x"),
    ("123456849.0+0", "123456789"),
    ("0.5000001", "1/2"),
    ("0.7500001", "3/4"),
    ("0.33", "1/3"),
    ("0.66667", "2/3"),
    ("0.333335", "1/3"),
    ("0.0", "1/99999999"),
    ("17636690.0", "123456789/7"),
    ("17636690.0+100000.*0", "123456789/7"),
    ("3.14161", "pi"),
    ("314159265.0", "100000000 pi"),
    ("0.3000001", "0.3"),
    ("1.0", "sqrt(2)"),
    ("0.333333335x", "x/3"),
    ("2^2000*2^1500", "sqrt(2)"),
    ("2^2000*2^1500", "pi"),
    ("2^-2000*2^-1500", "pi"),
    ("(2^2000*2^1500)^(1/3)", "2"),
]
