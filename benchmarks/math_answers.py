"""Time that the reward `math` takes per answer: our own comparison, and math-verify in its worker process.

    python benchmarks/math_answers.py [--repeats 20]

Answers differ in each repeat, so that no cache helps. Wall time per answer, median and largest.
"""

import argparse
import asyncio
import statistics
import time

from rich.console import Console
from rich.table import Table

from turnwise.rewards.math_answers import SymbolicMath
from turnwise.rewards.math_verifier import MathVerifier
from turnwise.rewards.rubric import Submission

CASES = {
    "number (ours)": ("{}.5", r"{}\frac{{1}}{{2}}"),
    "polynomial (ours)": ("(x+{0})^2", "x^2+2*{0}*x+{0}^2"),
    "set": (r"\{{{0}, \sqrt{{2}}\}}", r"\{{\sqrt{{2}}, {0}\}}"),
    "interval": (r"(-\infty, {}]", r"x \le {}"),
    "matrix": (r"\begin{{pmatrix}}{0}\\1\end{{pmatrix}}", r"\begin{{bmatrix}}{0}\\1\end{{bmatrix}}"),
    "equation": ("2x = {0}", "2x + {0} = 2*{0}"),
    "functions": (r"{0}\sin(x)e^x", r"{0}e^{{x}}\sin x"),
    "text around boxed": (r"So the set is \boxed{{\{{{0}, 1\}}}}.", r"\{{1, {0}\}}"),
    "no formula": (r"there is no solution for {0}", r"\{{{0}\}}"),
}
"""Answer and reference. All are equal but the last, which has nothing to compare."""


async def measure(part: SymbolicMath, answer: str, reference: str, repeats: int) -> tuple[float, list[float]]:
    """Return the mean score and the seconds of each answer."""
    scores, seconds = [], []
    for number in range(2, repeats + 2):
        row = {"answer": reference.format(number)}
        began = time.perf_counter()
        scores.append(await part(Submission(question="?", answer=answer.format(number), row=row)))
        seconds.append(time.perf_counter() - began)
    return statistics.mean(scores), seconds


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    repeats = parser.parse_args().repeats
    verifier = MathVerifier()
    part = SymbolicMath().with_verifier(verifier)
    try:
        _, (start, *_) = await measure(part, *CASES["set"], 1)
        table = Table("answer", "score", "median ms", "largest ms")
        for name, (answer, reference) in CASES.items():
            score, seconds = await measure(part, answer, reference, repeats)
            assert score == float(name != "no formula"), f"{name} scores {score:g}"
            table.add_row(name, f"{score:g}", f"{statistics.median(seconds) * 1000:.2f}", f"{max(seconds) * 1000:.1f}")
        Console().print(table, f"start of the worker: {start:.1f} s")
    finally:
        verifier.close()


if __name__ == "__main__":
    asyncio.run(main())
