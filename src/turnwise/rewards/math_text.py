"""Parser for mathematical expressions in plain text or LaTeX. No text can ever run as code.

Supports numbers, one-letter variables, pi, + - * / ^, square roots and parentheses.
"""

import re
from collections.abc import Container
from decimal import Decimal
from fractions import Fraction

MAX_EXPRESSION_CHARS = 400
"""Length of an expression, at most."""
BOXED = re.compile(r"^\\boxed\s*\{(.*)\}$", re.DOTALL)
INLINE = re.compile(r"(?<!\\)\$+([^$]+)\$+")
GROUPED = re.compile(r"(?<=[0-9])(?:,|\{,\}|\\,|_|\s)(?=[0-9]{3}(?:[^0-9]|$))")
INNERMOST = (
    (re.compile(r"\\([cdt]?frac|sqrt)(?:\s*([0-9])|\s+([A-Za-z]))"), r"\\\1{\2\3}"),
    (re.compile(r"(\\[cdt]?frac\s*\{[^{}]+\})\s*([0-9A-Za-z])"), r"\1{\2}"),
    (re.compile(r"\\[cdt]?frac\s*\{([^{}]+)\}\s*\{([^{}]+)\}"), r"((\1)/(\2))"),
    (re.compile(r"\\sqrt\s*\{([^{}]+)\}"), r" sqrt(\1)"),
    (re.compile(r"\^\s*\{([^{}]+)\}"), r"^(\1)"),
)
"""Rewrites of innermost braces and of commands without braces (\\sqrt2), applied until none is left."""
SHORT_FRACTION = re.compile(r"\\[cdt]?frac\s*([0-9])\s*([0-9])")
MIXED_NUMBER = re.compile(r"(?<![0-9.^])([0-9]+)\s*\\[cdt]?frac\s*\{\s*([0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}")
WORDS = {
    r"\cdot": "*",
    r"\times": "*",
    r"\div": "/",
    r"\left": "",
    r"\right": "",
    r"\pi": " pi ",
    r"\,": " ",
    r"\!": "",
    r"\;": " ",
    "**": "^",
    "−": "-",
    "–": "-",
    "×": "*",
    "·": "*",
    "÷": "/",
    "√": " sqrt",
    "π": " pi ",
}
EXPONENT = r"(?:[eE][+-]?[0-9]+)"
TOKEN = re.compile(rf"(?:[0-9]+\.?[0-9]*|\.[0-9]+){EXPONENT}?|[A-Za-z]+|\S")
DECIMAL = re.compile(rf"(?:[0-9]+\.[0-9]*|\.[0-9]+){EXPONENT}?|[0-9]+{EXPONENT}")
MAX_EXPONENT = 1200
"""Largest power of ten of a number like 1e3."""
PRIORITY = {"(": 0, "+": 1, "-": 1, "*": 2, "/": 2, "neg": 3, "^": 4, "sqrt": 5}
"""A root binds to the next operand: sqrt(x)^2 is (sqrt(x))^2; and -x^2 is -(x^2)."""
PREFIXES = ("neg", "sqrt")
PI = Decimal("3.1415926535897932384626433832795028841971693993751058209749445923")

Item = Fraction | Decimal | str
Postfix = tuple[Item, ...]
"""Postfix notation: (1 + x) * 3 is 1 x + 3 *."""


def plain(text: str) -> str:
    """Strip spaces, dollar signs, \\boxed and a final full stop."""
    text = text.strip().strip("$").strip()
    if boxed := BOXED.match(text):
        text = boxed[1].strip()
    return text[:-1].rstrip() if text.endswith(".") else text


def final_expression(text: str) -> str:
    """Return what is in the last \\boxed{...}, or in the only $...$; the whole text if there is neither."""
    start = text.rfind(r"\boxed{")
    if start >= 0:
        depth = 0
        for position in range(start + len(r"\boxed"), len(text)):
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            if not depth:
                return text[start + len(r"\boxed{") : position]
    inline = INLINE.findall(text)
    return str(inline[0]) if len(inline) == 1 else text


def parse(text: str, functions: Container[str] = ()) -> Postfix:
    """Parse an expression; raises ValueError. Not recursive, so nesting cannot exhaust the stack.

    `functions`: words that are prefix operators like sqrt. With them, characters of Unicode's private use area are
    operands. `evaluate` knows neither.
    """
    text = plain(text)
    if len(text) > MAX_EXPRESSION_CHARS:
        raise ValueError("too long for an expression")
    return _Reader(functions).read(TOKEN.findall(without_latex(text)))


def is_expression(text: str) -> bool:
    """Return whether `parse` accepts the text."""
    try:
        parse(text)
    except ValueError:
        return False
    return True


def decimals(text: str) -> list[str]:
    """Return the numbers in an expression that have a decimal point."""
    return [
        token for token in TOKEN.findall(without_latex(plain(text)[:MAX_EXPRESSION_CHARS])) if DECIMAL.fullmatch(token)
    ]


def variables(postfix: Postfix) -> set[str]:
    return {item for item in postfix if isinstance(item, str) and len(item) == 1 and item.isalpha()}


def without_latex(text: str) -> str:
    """Rewrite LaTeX as plain text; what has no plain form stays."""
    text = SHORT_FRACTION.sub(r"\\frac{\1}{\2}", GROUPED.sub("", text))
    text = MIXED_NUMBER.sub(_mixed_number, text)
    for _ in range(MAX_EXPRESSION_CHARS):  # each round removes braces
        before = text
        for pattern, plainly in INNERMOST:
            text = pattern.sub(plainly, text)
        if text == before:
            break
    for word, sign in WORDS.items():
        text = text.replace(word, sign)
    return text


def _mixed_number(match: re.Match[str]) -> str:
    """Return 7/2 for 3 1/2, and a sum if the fraction is not a proper one."""
    whole, top, bottom = map(int, match.groups())
    return f"({whole * bottom + top}/{bottom})" if top < bottom else f"({whole}+{top}/{bottom})"


def read_number(token: str) -> Fraction:
    """Return the value of a number token; raises ValueError if its exponent is too large."""
    exponent = re.split("[eE]", token)[1:]
    if exponent and (len(exponent[0]) > len(str(MAX_EXPONENT)) + 1 or abs(int(exponent[0])) > MAX_EXPONENT):
        raise ValueError("an exponent too large")
    return Fraction(token)


class _Reader:
    def __init__(self, functions: Container[str]) -> None:
        self.functions = functions
        self.output: list[Item] = []
        self.waiting: list[str] = []
        """Operators and parentheses whose right side is not complete."""
        self.operand_next = True

    def read(self, tokens: list[str]) -> Postfix:
        for token in tokens:
            if token[0] in "0123456789.":
                self._number(token)
            elif self.functions and "\ue000" <= token <= "\uf8ff":
                self._join()
                self._operand(token)
            elif token.isascii() and token.isalpha():
                self._word(token)
            elif token == "(":
                self._open()
            elif token == ")":
                self._close()
            else:
                self._operation(token)
        if self.operand_next or "(" in self.waiting:
            raise ValueError("the expression is not complete")
        return (*self.output, *reversed(self.waiting))

    def _number(self, token: str) -> None:
        if not self.operand_next or token == ".":
            raise ValueError("a number where an operation belongs")
        self._operand(read_number(token))

    def _word(self, token: str) -> None:
        if token in ("sqrt", "pi") or token in self.functions:
            self._join()
            if token == "pi":
                self._operand(PI)
            else:
                self.waiting.append(token)
        elif len(token) > 2:
            raise ValueError("a word")  # two letters are a product, but a word is not
        else:
            for letter in token:
                self._join()
                self._operand(letter)

    def _operand(self, item: Item) -> None:
        self.output.append(item)
        self.operand_next = False

    def _join(self) -> None:
        """Multiply what is written side by side."""
        if not self.operand_next:
            self._operation("*")

    def _open(self) -> None:
        self._join()
        self.waiting.append("(")

    def _close(self) -> None:
        if self.operand_next or "(" not in self.waiting:
            raise ValueError("a parenthesis too many")
        while (operation := self.waiting.pop()) != "(":
            self.output.append(operation)

    def _operation(self, token: str) -> None:
        if token not in "+-*/^":
            raise ValueError("not an expression")
        if self.operand_next:
            if token not in "+-":
                raise ValueError("an operation without its left side")
            if token == "-":
                self.waiting.append("neg")
            return
        while self.waiting and self._binds_before(self.waiting[-1], token):
            self.output.append(self.waiting.pop())
        self.waiting.append(token)
        self.operand_next = True

    @staticmethod
    def _binds_before(waiting: str, token: str) -> bool:
        """Return whether the waiting operation comes first; powers are taken from the right."""
        function = PRIORITY["sqrt"]
        return PRIORITY.get(waiting, function) >= PRIORITY[token] and not token == waiting == "^"
