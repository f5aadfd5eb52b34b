"""Tests whether an answer is written as a result: a checker that evaluates expressions would pay for the question.

`17*23` equals 391 and is not an answer. An answer counts if it is written as the reference is, up to the order of terms
and factors, or if no work is left in it:

- If the reference is a number, the answer is one: 391, -2.5, 3/4 in lowest terms, 3\\frac{1}{2}, 1e3, 1.5\\times10^3.
- Else it is simplified: no arithmetic on numbers, no like terms, no common factors, no square factors under a root, no
  functions or variables that the reference lacks, and it is not a formula that the question shows.

Sets, intervals, tuples, matrices and equations are split into their parts, and each of them is tested.
"""

import re
from collections import Counter
from zlib import crc32

from turnwise.rewards.math_text import GROUPED, TOKEN, parse, plain, without_latex
from turnwise.rewards.math_tree import (
    Call,
    Negative,
    Node,
    build_tree,
    denominator_degree,
    is_literal,
    is_simplified,
    variables,
    walk,
)
from turnwise.rewards.math_units import strip_units

FUNCTIONS = {
    **dict.fromkeys(("sin", "cos", "tan", "cot", "sec", "csc"), "trigonometric"),
    **dict.fromkeys(("arcsin", "arccos", "arctan"), "inverse trigonometric"),
    **dict.fromkeys(("ln", "log", "exp"), "logarithm"),
    "abs": "absolute value",
    "root": "root",
}
"""Functions by name, with their kinds."""
NAMES = "|".join(FUNCTIONS)
MATRIX = r"(?:[pbB]?matrix|array|cases|aligned)"
SYMBOL = re.compile(
    r"\\(?:infty|emptyset|varnothing|mathbb|alpha|beta|gamma|delta|(?:var)?epsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi|rho"
    r"|sigma|tau|(?:var)?phi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Phi|Psi|Omega)(?![A-Za-z])"
    r"|(?<![0-9])[A-Za-z]\s*_\s*(?:\{[^{}]*\}|[0-9A-Za-z])|[∞∅]"
)
"""Commands and letters with a subscript, each of which stands for one value."""
REWRITES = (
    (re.compile(r"\\text\s*\{\s*(?:and|or)\s*\}"), " , "),
    (re.compile(r"\\(?:left|right|bigg?[lr]?|Bigg?[lr]?)(?![a-z])|(?<!\\)\\[,;:! ]|~"), " "),
    (re.compile(rf"(^|[,;:=({{\[&])\s*\\begin\{{{MATRIX}\}}(?:\s*\{{[lcr|]*\}})?"), r"\1 , "),
    (re.compile(rf"\\end\{{{MATRIX}\}}\s*(?=$|[,;:=)}}\]&]|\\text)"), " , "),
    (re.compile(r"\\mathbb\s*\{?\s*[A-Z]\s*\}?"), r"\\mathbb "),
    (re.compile(r"\\sqrt\s*\[[^\[\]]*\]"), r" root "),
    (re.compile(r"\\?(?<![A-Za-z])log\s*_\s*(?:\{[^{}]*\}|\S)"), " log "),
    (re.compile(rf"\\?(?<![A-Za-z])({NAMES})(?![A-Za-z])(?:\s*\^\s*(?:\{{[^{{}}]*\}}|\S))?"), r" \1 "),
    (re.compile(r"(?:\\[lr]?vert|\|)([^|]*)(?:\\[lr]?vert|\|)"), r" abs(\1)"),
)
"""Only a matrix by itself is split: a product of matrices is left to compute, and so is a determinant (vmatrix).

They lose the index of a root, the base of a logarithm and the 2 of \\sin^2 x: values are compared elsewhere.
"""
SEPARATOR = re.compile(
    r"\\\\|\\[{}]|\\(?:cup|setminus|in|leq?|geq?|lt|gt|neq?|mid|to|implies|iff|q?quad|[lc]?dots|land|lor)(?![A-Za-z])"
    r"|[,;:=<>&\[\]|≤≥≠∪]|(?<![A-Za-z])(?:and|or)(?![A-Za-z])"
)
SET_OPERATION = re.compile(r"\\(?:cup|setminus)(?![A-Za-z])|∪")
RELATION = re.compile(r"[<>≤≥≠|]|\\(?:leq?|geq?|lt|gt|neq?|vert)(?![A-Za-z])")
PLUS_MINUS = re.compile(r"\\pm|\\mp|±")
DEFINED = re.compile(r"^\s*[A-Za-z]'*\s*(?:\([A-Za-z]\))?\s*=(?!.*=)")
"""f(x) = or y =, in front of the only equation."""
KEPT_WORDS = {*FUNCTIONS, "sqrt", "and", "or"}
UNREAD = "unread"
"""Function of a part that cannot be parsed, such as an integral, a binomial or a factorial."""
MAX_CHARS = 1000
"""Characters of an answer that are read."""
MAX_QUESTION_CHARS = 20_000
"""Characters of a question that are searched for the answer."""


def is_result(answer: str, reference: str, question: str = "") -> bool:
    """Return whether an answer is written as a result. Whether it is the right one is not tested."""
    parts, expected = _split_parts(answer, reference), _split_parts(reference, answer)
    if len(SET_OPERATION.findall(answer)) > len(SET_OPERATION.findall(reference)) and not RELATION.search(reference):
        return False
    own = [part for part in parts if part not in expected]
    if any(isinstance(part, Call) and part.function == UNREAD for part in own):
        return False
    if all(map(_is_atomic, expected)):
        return all(map(_is_atomic, own))
    names, kinds = (set().union(*map(find, expected)) for find in (variables, _function_kinds))
    degree = max(denominator_degree(part, of_sum=True) for part in expected)
    return not _is_copied(answer, own, question) and all(
        is_simplified(part)
        and variables(part) <= names
        and _function_kinds(part) <= kinds
        and denominator_degree(part, of_sum=False) <= degree
        for part in own
    )


def _is_atomic(part: Node) -> bool:
    """Return whether this is a number or a symbol by itself, such as the x and the 2 of x < 2."""
    inner = part.of if isinstance(part, Negative) else part
    return is_literal(part) or isinstance(inner, str) or (isinstance(part, Call) and part.function == UNREAD)


def _function_kinds(part: Node) -> set[str]:
    return {FUNCTIONS[node.function] for node in walk(part) if isinstance(node, Call) and node.function in FUNCTIONS}


def _is_copied(answer: str, parts: list[Node], question: str) -> bool:
    """Return whether the question has the formula of the answer, in any order and with any parentheses."""
    if all(map(_is_atomic, parts)):
        return False
    tokens, shown = (
        [token.rstrip(".") for token in TOKEN.findall(without_latex(text)) if token not in "()"]
        for text in (plain(answer), question[:MAX_QUESTION_CHARS])
    )
    wanted, window = Counter(tokens), Counter(shown[: len(tokens)])
    for first, following in zip(shown, [*shown[len(tokens) :], ""], strict=False):
        if window == wanted:
            return True
        window[first] -= 1
        window[following] += 1
    return False


def _split_parts(text: str, other: str) -> list[Node]:
    """Return the elements of sets, tuples, matrices and intervals, and the sides of equations, without units."""
    text = DEFINED.sub("", plain(text)[:MAX_CHARS])
    for pattern, plainly in REWRITES:
        text = pattern.sub(plainly, text)
    text = strip_units(GROUPED.sub("", text), other, KEPT_WORDS)
    text = SYMBOL.sub(lambda name: f" {chr(0xE000 + crc32(''.join(name[0].split()).encode()) % 6400)} ", text)
    pieces = [_strip_unmatched(PLUS_MINUS.sub("+", piece)) for piece in SEPARATOR.split(text)]
    return [_read(piece) for piece in pieces if piece]


def _read(piece: str) -> Node:
    try:
        return build_tree(parse(without_latex(piece).replace("{", "(").replace("}", ")"), FUNCTIONS))
    except ValueError:
        return Call(UNREAD, "".join(piece.split()))


def _strip_unmatched(text: str) -> str:
    """Remove brackets without a partner, as in the two halves of (1, 2)."""
    opened: list[int] = []
    unmatched: set[int] = set()
    for index, letter in enumerate(text):
        if letter in "({":
            opened.append(index)
        elif letter in ")}" and opened and text[opened[-1]] + letter in ("()", "{}"):
            opened.pop()
        elif letter in ")}":
            unmatched.add(index)
    unmatched.update(opened)
    return "".join(" " if index in unmatched else letter for index, letter in enumerate(text)).strip()
