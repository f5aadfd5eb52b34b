"""math-verify decides what our parser cannot read, and accepts nothing that our rules forbid."""

import asyncio
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from math_answers_for_tests import HASTY_WORKER, QUICK_WORKER, RIGHT, WRONG
from turnwise.core.errors import InfrastructureFailure, UserError
from turnwise.rewards import math_verifier
from turnwise.rewards.factory import build_rubric
from turnwise.rewards.math_answers import compare
from turnwise.rewards.math_verifier import MathVerifier, _Worker, prepare
from turnwise.rewards.rubric import Submission
from turnwise.rewards.scoring import score_submission
from turnwise.rewards.services import RewardServices

pytest.importorskip("math_verify", reason="math-verify is an optional extra")

SOAK = int(os.environ.get("TURNWISE_SOAK", "1"))
ACCEPTED = [
    (r"\left\{2, 1\right\}", r"\{1,2\}"),
    ("{1, 2}", r"\{2,1\}"),
    ("2, 1", r"\{1, 2\}"),
    (r"\pm 7", "7, -7"),
    (r"\{0.5, 1\}", r"\{1, \frac{1}{2}\}"),
    (r"(-\infty, 2]", r"x \le 2"),
    ("(-∞, 2]", r"(-\infty,2]"),
    (r"[0,2] \setminus \{1\}", r"[0,1)\cup(1,2]"),
    (r"\mathbb{R}", r"(-\infty, \infty)"),
    (r"\begin{bmatrix}1&2\\3&4\end{bmatrix}", r"\begin{pmatrix} 1 & 2 \\ 3 & \frac{8}{2} \end{pmatrix}"),
    ("2x = 4", "2x+3=7"),
    ("f(x) = x^2", r"x^{2}\text{ }"),
    (r"\cos^2 x - \sin^2 x", r"\cos(2x)"),
    ("2 sin(x) cos(x)", r"\sin(2x)"),
    (r"2\sqrt[3]{2}", r"\sqrt[3]{16}\text{ cm}"),
    ("10", r"\binom{5}{2}"),
    ("120", "5!"),
    (r"\frac12", r"\int_0^1 x dx"),
    (r"50\%", "1/2"),
    ("50%", "0.5"),
    (r"5\text{ cm}", "5"),
    (r"\$5", "5"),
    (r"90^\circ", "90"),
    (r"2\frac{1}{2}\text{ cups}", r"\frac{5}{2}\text{ cups}"),
    (r"The answer is \boxed{\frac{3}{4}}, as shown.", "0.75"),
    (r"So $x = 3$.", "3"),
    (r"The set is \boxed{\{1, \{2\}\}}", r"\{1,\{2\}\}"),
    (r"\boxed{1}? No, \boxed{2}.", "2"),
    (r"\text{East}", "east"),
    (r"111_{2}\text{ }", "111_2"),
]
"""Answer, reference."""
REJECTED = [
    (r"\{1, 2\}", r"\{1, 3\}"),
    (r"\{2.0000001\}", r"\{2\}"),
    (r"\{0.333333\}", r"\{\frac13\}"),
    (r"\{123456849.0\}", r"\{123456789\}"),
    (r"\sqrt[3]{2}+10^{-20}", r"\sqrt[3]{2}"),
    (r"The answer is \boxed{2.0000001}", "2"),
    (r"The answer is \boxed{0.333}", r"\frac{1}{3}"),
    (r"\boxed{2}? No, \boxed{1}.", "2"),
    ("$1$ or $2$", "2"),
    ("(1, 2)", "[1, 2]"),
    ("(2, 1)", "(1, 2)"),
    (r"\begin{pmatrix}2\\1\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    ("y = 3", "x = 3"),
    (r"\sin y", r"\sin x"),
    ("cat", "act"),
    (r"\text{east}", "seat"),
    ("7 8", "15"),
    (r"7\,8", "15"),
    (r"7\hspace{1em}8", "15"),
    ("{7}{8}", "15"),
    (r"7\text{ }8", "78"),
    ("3 0.5", "3.5"),
    ("1.5.2", "0.3"),
    ("7 = 8", "8"),
    ("x = 7 = 8", "8"),
    (r"5\text{ km}", r"5\text{ cm}"),
    (r"5\text{ km}", "5 m"),
    ("5 miles", "5 apples"),
    ("111_3", "111_2"),
    ("7_8", "7"),
    (r"\frac{0}{0}\text{ }", "0"),
    ("3}+{4", "3"),
    ("", r"\{\}"),
    (r"7 \text{ or } 8", "7"),
]


@pytest.fixture(scope="module")
def services() -> Iterator[RewardServices]:
    services = RewardServices()
    yield services
    asyncio.run(services.close())


def score(services: RewardServices, answer: str, reference: Any, **options: Any) -> float:
    rubric = build_rubric([{"use": "math", **options}], lambda name: pytest.fail(name), services)
    submission = Submission(question="?", answer=answer, row={"answer": reference})
    return asyncio.run(score_submission(rubric, submission)).reward


@pytest.mark.parametrize(("answer", "reference"), ACCEPTED)
def test_math_accepts_latex_that_only_math_verify_reads(answer: str, reference: str, services: RewardServices) -> None:
    assert score(services, answer, reference) == 1


@pytest.mark.parametrize(("answer", "reference"), REJECTED)
def test_math_rejects_what_math_verify_alone_accepts(answer: str, reference: str, services: RewardServices) -> None:
    assert score(services, answer, reference) == 0


@pytest.mark.parametrize("wrapping", ["{}", r"\boxed{{{}}}", r"The answer is \boxed{{{}}}."])
def test_math_keeps_our_rules_for_numbers(wrapping: str, services: RewardServices) -> None:
    for answer, reference in RIGHT:
        assert score(services, wrapping.format(answer), reference) == 1
    for answer, reference in WRONG:
        assert score(services, wrapping.format(answer), reference) == 0


@settings(max_examples=10 if SOAK == 1 else 40 * SOAK, deadline=None)
@given(st.integers(0, 10**12), st.integers(1, 10**6), st.sampled_from([r"\{{{}\}}", r"{}\text{{ cm}}", "[0, {})"]))
def test_math_verify_never_rounds(services: RewardServices, number: int, off: int, form: str) -> None:
    exact, near = form.format(f"{number}.5"), form.format(f"{number}.5{off:07d}")
    assert score(services, exact, form.format(rf"\frac{{{2 * number + 1}}}{{2}}")) == 1
    assert score(services, near, exact) == 0


def test_math_asks_math_verify_only_where_our_parser_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def verify(self: MathVerifier, text: str, expected: str) -> bool:
        asked.append(text)
        return True

    monkeypatch.setattr(MathVerifier, "verify", verify)
    for answer in ("3.5", r"\frac{1}{2}", "x+1", "2^9999999999", "0/0"):
        assert score(RewardServices(), answer, "7") == 0
    assert not asked and score(RewardServices(), r"7\text{ cm}", "7") == 1 and asked


UNINTERRUPTIBLE = [r"\{10^{10^{10}}\}", r"\{9^{9^{9^{9}}}\}", r"\left(10^{10^{10}}\right)!\text{ cm}"]
"""Each ends its worker, and the next takes a second to start: one of them, and in `make soak` all."""
HOSTILE = [
    *UNINTERRUPTIBLE[: 1 if SOAK == 1 else None],
    r"\{" + r"\frac{1}{" * 80 + "x" + "}" * 80 + r"\}",
    r"\{" + "(" * 300 + "1" + ")" * 300 + r"\}",
    r"\sqrt[99999999]{" + "9" * 300 + "}",
    r"\sum_{n=1}^{10^{12}} \frac{1}{n}",
    r"\int_0^1 \sin(\cos(\tan(x^{x^x}))) dx",
    r"\{" + ",".join(map(str, range(200))) + r"\}",
    r"\{(x+1)^{9999999}\}",
]


def test_hostile_answers_score_zero_and_leave_the_worker_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_verifier, "WORKER", HASTY_WORKER.format(0.3))
    services = RewardServices()
    for place, answer in enumerate(HOSTILE):
        assert score(services, answer, r"\{(x+2)^{9999998}, 3\}") == 0
        assert score(services, rf"\{{{place}, 99\}}", rf"\{{99, {place}\}}") == 1, "verdicts are cached"
    asyncio.run(services.close())


@pytest.fixture
def quick_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start workers without math-verify, whose import takes a second."""
    monkeypatch.setattr(math_verifier, "WORKER", QUICK_WORKER)


@pytest.mark.usefixtures("quick_worker")
def test_verifier_restarts_a_killed_worker() -> None:
    verifier = MathVerifier()
    assert asyncio.run(verifier.verify(r"\{2, 1\}", r"\{1, 2\}"))
    assert verifier._worker is not None
    verifier._worker._process.kill()
    verifier._worker._process.wait()
    assert asyncio.run(verifier.verify(r"\{3, 1\}", r"\{1, 3\}"))
    verifier.close()


@pytest.mark.usefixtures("quick_worker")
def test_verifier_blames_no_answer_for_a_worker_killed_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    verifier = MathVerifier()

    def kill(worker: _Worker, question: dict[str, str]) -> None:
        worker._process.kill()
        raise EOFError

    monkeypatch.setattr(_Worker, "ask", kill)
    with pytest.raises(InfrastructureFailure, match="was killed"):
        asyncio.run(verifier.verify(r"\{2, 1\}", r"\{1, 2\}"))
    verifier.close()


@pytest.mark.usefixtures("quick_worker")
def test_verifier_kills_a_worker_that_does_not_reply(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("turnwise.rewards.math_verifier.WALL_LIMIT_S", 0.01)
    verifier = MathVerifier()
    assert not asyncio.run(verifier.verify(r"\sum_{n=1}^{10^{12}} \frac{1}{n}", r"\{1, 2\}"))
    assert verifier._worker is not None and not verifier._worker.alive
    assert "counts as wrong" in caplog.text
    verifier.close()


@pytest.mark.usefixtures("quick_worker")
def test_services_close_ends_the_worker() -> None:
    services = RewardServices()
    assert score(services, r"\{2, 1\}", r"\{1, 2\}") == 1
    worker = services.math_verifier._worker
    assert worker is not None and Path(f"/proc/{worker._process.pid}").exists()
    asyncio.run(services.close())
    assert not Path(f"/proc/{worker._process.pid}").exists()
    assert score(services, r"\{3, 1\}", r"\{1, 3\}") == 1, "it starts again"
    asyncio.run(services.close())


@pytest.mark.usefixtures("quick_worker")
def test_worker_exits_when_the_run_dies() -> None:
    worker = _Worker()
    worker._connection.close()
    deadline = time.monotonic() + 60
    while worker._process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert worker._process.returncode == 0
    worker.end()


@pytest.mark.usefixtures("quick_worker")
def test_worker_sees_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    worker = _Worker()
    assert b"secret" not in Path(f"/proc/{worker._process.pid}/environ").read_bytes()
    worker.end()


def test_verifier_asks_once_for_equal_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    verifier, asked = MathVerifier(), []
    monkeypatch.setattr(verifier, "_ask", lambda *question: asked.append(question) or True)
    for _ in range(3):
        assert asyncio.run(verifier.verify(r"\{2, 1\}", r"\{1, 2\}"))
    assert len(asked) == 1
    verifier.close()


def test_missing_extra_scores_as_our_parser_and_hints_once(caplog: pytest.LogCaptureFixture) -> None:
    services = RewardServices()
    services.math_verifier.is_installed = False
    with caplog.at_level(logging.WARNING):
        assert score(services, "no idea", "7") == 0 and not caplog.records
        for answer, reference in ACCEPTED:
            assert score(services, answer, reference) == float(bool(compare(answer, reference)))
    (record,) = caplog.records
    assert "pip install 'turnwise[math]'" in record.getMessage()


def test_broken_installation_stops_with_the_way_to_fix_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "math_verify.py").write_text("raise ImportError('no antlr')")
    monkeypatch.syspath_prepend(str(tmp_path))
    verifier = MathVerifier()
    with pytest.raises(UserError, match=r"no antlr.*pip install 'turnwise\[math\]'"):
        asyncio.run(verifier.verify(r"\{2, 1\}", r"\{1, 2\}"))
    verifier.close()


@given(st.text(alphabet="0123456789.x+-/^(){}[]\\frac ,_%$text", max_size=60))
@example(r"\,")  # a space of LaTeX and nothing else
def test_prepare_handles_any_text(text: str) -> None:
    assert (prepared := prepare(text)) is None or prepared.strip()


def test_prepare_bounds_the_length_of_answers() -> None:
    assert prepare(r"\{" + "1," * 5000 + r"1\}") is None
