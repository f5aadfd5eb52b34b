"""Keys and the addresses they are for. A recipe says where a key is; what it is stands in no recipe and no message."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from urllib.parse import SplitResult, parse_qsl, urlsplit

from turnwise.core.errors import UserError

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""What can name an environment variable."""
PLACEHOLDER = re.compile(rf"\$\{{({VARIABLE.pattern})\}}")
"""Stands in a command line for the value of a variable: ${NAME}."""
SECRET_ENDINGS = (
    *("password", "passwd", "passphrase", "secret", "token", "credential", "credentials"),
    *("apikey", "accesskey", "secretkey", "privatekey"),
)
"""Endings of names that hold a secret, also within a word, as in PGPASSWORD."""
SECRET_WORDS = ("pass", "pwd", "auth", "authorization", "bearer")
"""Last words of names that hold a secret. Only whole words: COMPASS is not a secret."""
PLAIN_KEYS = ("sort", "order", "group", "partition", "primary", "foreign", "join", "row", "index", "cache", "public")
"""Words before "key" in names that hold no secret; any other key is one."""
PLAIN_VALUE = re.compile(r"(?i)[0-9]{1,5}|true|false|yes|no|on|off|none")
"""Values that are not a secret, unless the name asks for a password."""
SECRET_HEADER = re.compile(r"(?i)([\w-]*(?:authorization|cookie|key|token|secret))\s*:\s*(?:(?:bearer|basic)\b\s*)?+\S")
SECRET_SHAPES = re.compile(
    r"\b(?:sk-[\w-]{16,}|[sr]k_(?:live|test)_\w{10,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|hf_\w{20,}|xox[abeoprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|eyJ[\w-]{10,}\.eyJ[\w-]{10,})"
)
"""Keys that are known by how they begin: of OpenAI, Stripe, GitHub, GitLab, Hugging Face, Slack, AWS, Google; JWTs."""


def split_url(url: str, *, option: str, example: str, mend: str) -> SplitResult:
    """Its parts. Refuses what is no address, or holds a key, which would be saved; it is not repeated.

    `option`: what gave it; `mend`: how a key is given instead.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not host:
        raise UserError(f"{option} must be a URL such as {example}")
    if parts.username or parts.password:
        raise UserError(f"{option} holds a password, which would be saved: {mend}")
    if any(names_secret(name) for name, _ in parse_qsl(parts.query, keep_blank_values=True)):
        raise UserError(f"{option} holds a key behind its ?, which would be saved: {mend}")
    return parts


def refuse_keys(command: Sequence[str], *, option: str, fix: str) -> None:
    """Refuses a command line that holds a key, which would be saved; the key is not repeated.

    Found by its name (--api-key KEY, --token=KEY, KEY=value, a header), its shape, or a URL's password. A placeholder
    in its place is none.
    """
    words = [word for given in command for word in _words(given)]
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, sign, value = word.partition("=")
        given = value if sign else following if word.startswith("-") and not following.startswith("-") else ""
        is_plain = PLAIN_VALUE.fullmatch(given) and "pass" not in name.lower()
        if names_secret(name) and is_shown(given) and not is_plain:
            raise UserError(f"{option} holds a key after {name[:40]}, which would be saved: {fix}")
        if any(map(_holds_key, (word, value))):
            raise UserError(f"{option} holds a key or a password, which would be saved: {fix}")


def names_secret(name: str) -> bool:
    """Return whether an option, variable or header with this name holds a secret, judging by its last words."""
    words = re.findall("[a-z0-9]+", re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())
    before, last = ["", "", *words][-2:]
    if last == "key":
        return before not in PLAIN_KEYS
    return last in SECRET_WORDS or last.endswith(SECRET_ENDINGS)


def is_shown(value: str) -> bool:
    """Whether a key's value stands there itself, and no placeholder for it."""
    return bool(PLACEHOLDER.sub("", value).strip())


def _words(word: str) -> list[str]:
    """The word, and those in it where it is a command line itself, as after sh -c."""
    try:
        inner = shlex.split(word) if any(map(str.isspace, word)) else []
    except ValueError:
        inner = word.split()
    return [word, *(each for one in inner if one != word for each in _words(one))]


def _holds_key(word: str) -> bool:
    bare = PLACEHOLDER.sub("", word)
    header = SECRET_HEADER.match(bare)
    if SECRET_SHAPES.search(bare) or (header and (names_secret(header[1]) or header[1].lower().endswith("cookie"))):
        return True
    try:
        parts = urlsplit(bare)
        names = [name for name, value in parse_qsl(parts.query) if value]
        return "://" in bare and (bool(parts.password) or any(map(names_secret, names)))
    except ValueError:
        return False


def read_key(
    parts: SplitResult,
    variable: str | None,
    *,
    default: str,
    option: str,
    environment: Mapping[str, str] = os.environ,
) -> str | None:
    """The key to this address: from the variable that `option` named, or else from `default` where there is one.

    That one is meant for another host, perhaps: it never goes over an unencrypted line unless it is named. What was
    named is not repeated: it may be the key itself.
    """
    if variable is None and parts.scheme == "http" and not is_local(parts.hostname or ""):
        return None
    key = environment.get(variable or default, "").strip()
    if variable is not None and not key:
        raise UserError(f"the variable that {option} names is not set: export it, as export NAME=KEY")
    if not (key.isascii() and key.isprintable()):
        where = f"the variable that {option} names" if variable is not None else default
        raise UserError(f"the key in {where} holds characters that no key has: set it again")
    return key or None


def is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def name_of_variable(value: str) -> str:
    """`value` where it can be one; else a ValueError that does not show it: it is the key itself, perhaps."""
    if not VARIABLE.fullmatch(value):
        raise ValueError("that is no name of a variable: put the key into one, and its name here")
    return value
