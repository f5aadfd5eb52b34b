"""Parser for mathematical expressions in plain text or LaTeX. No text can ever run as code.

Supports numbers, one-letter variables, pi, + - * / ^, square roots and parentheses.
"""

import re
from decimal import Decimal
from fractions import Fraction

MAX_EXPRESSION_CHARS = 400
"""Length of an expression, at most."""
BOXED = re.compile(r"^\\boxed\s*\{(.*)\}$", re.DOTALL)
INLINE = re.compile(r"(?<!\\)\$+([^$]+)\$+")
GROUPED = re.compile(r"(?<=[0-9])(?:,|\{,\}|\\,|_|\s)(?=[0-9]{3}(?:[^0-9]|$))")
INNERMOST = (
    (re.compile(r"\\[dt]?frac\s*\{([^{}]+)\}\s*\{([^{}]+)\}"), r"((\1)/(\2))"),
    (re.compile(r"\\sqrt\s*\{([^{}]+)\}"), r" sqrt(\1)"),
    (re.compile(r"\^\s*\{([^{}]+)\}"), r"^(\1)"),
)
"""Rewrites of innermost braces, applied until none is left."""
SHORT_FRACTION = re.compile(r"\\[dt]?frac\s*([0-9])\s*([0-9])")
MIXED_NUMBER = re.compile(r"(?<![0-9.^])([0-9]+)\s*\\[dt]?frac\s*\{([0-9]+)\}\s*\{([0-9]+)\}")
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
TOKEN = re.compile(r"[0-9]+\.?[0-9]*|\.[0-9]+|[A-Za-z]+|\S")
DECIMAL = re.compile(r"[0-9]+\.[0-9]*|\.[0-9]+")
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


def parse(text: str) -> Postfix:
    """Parse an expression; raises ValueError. Not recursive, so nesting cannot exhaust the stack."""
    text = plain(text)
    if len(text) > MAX_EXPRESSION_CHARS:
        raise ValueError("too long for an expression")
    return _Reader().read(TOKEN.findall(_without_latex(text)))


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
        token for token in TOKEN.findall(_without_latex(plain(text)[:MAX_EXPRESSION_CHARS])) if DECIMAL.fullmatch(token)
    ]


def variables(postfix: Postfix) -> set[str]:
    return {item for item in postfix if isinstance(item, str) and len(item) == 1 and item.isalpha()}


def _without_latex(text: str) -> str:
    text = SHORT_FRACTION.sub(r"\\frac{\1}{\2}", GROUPED.sub("", text))
    text = MIXED_NUMBER.sub(r"(\1+\2/\3)", text)
    for _ in range(MAX_EXPRESSION_CHARS):  # each round removes braces
        before = text
        for pattern, plainly in INNERMOST:
            text = pattern.sub(plainly, text)
        if text == before:
            break
    for word, sign in WORDS.items():
        text = text.replace(word, sign)
    return text


class _Reader:
    def __init__(self) -> None:
        self.output: list[Item] = []
        self.waiting: list[str] = []
        """Operators and parentheses whose right side is not complete."""
        self.operand_next = True

    def read(self, tokens: list[str]) -> Postfix:
        for token in tokens:
            if token[0] in "0123456789.":
                self._number(token)
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
        self._operand(Fraction(token))

    def _word(self, token: str) -> None:
        if token in ("sqrt", "pi"):
            self._join()
            if token == "sqrt":
                self.waiting.append("sqrt")
            else:
                self._operand(PI)
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
        while self.waiting and PRIORITY[self.waiting[-1]] >= PRIORITY[token] and not token == self.waiting[-1] == "^":
            self.output.append(self.waiting.pop())
        self.waiting.append(token)
        self.operand_next = True
