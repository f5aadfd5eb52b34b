"""API keys and URLs. A recipe names the variable that has a key; no recipe and no message contains the key itself."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from urllib.parse import SplitResult, parse_qsl, urlsplit

from turnwise.core.errors import UserError
from turnwise.network.http_headers import is_local

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Name of an environment variable."""
PLACEHOLDER = re.compile(rf"\$\{{({VARIABLE.pattern})\}}")
"""${NAME}, the placeholder for the value of a variable in a command line."""
SECRET_ENDINGS = (
    *("password", "passwd", "passphrase", "secret", "token", "credential", "credentials"),
    *("apikey", "accesskey", "secretkey", "privatekey"),
)
"""Endings of names of secrets, also within a word, as in PGPASSWORD."""
SECRET_WORDS = ("pass", "pwd", "auth", "authorization", "bearer")
"""Last words of names of secrets. Only whole words: COMPASS is not a secret."""
PLAIN_KEYS = ("sort", "order", "group", "partition", "primary", "foreign", "join", "row", "index", "cache", "public")
"""Words before "key" in names that are not secrets; any other key is one."""
PLAIN_VALUE = re.compile(r"(?i)[0-9]{1,5}|true|false|yes|no|on|off|none")
"""Values that are not secrets, unless they are the value of a password."""
SECRET_HEADER = re.compile(r"(?i)([\w-]*(?:authorization|cookie|key|token|secret))\s*:\s*(?:(?:bearer|basic)\b\s*)?+\S")
SECRET_SHAPES = re.compile(
    r"\b(?:sk-[\w-]{16,}|[sr]k_(?:live|test)_\w{10,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|hf_\w{20,}|xox[abeoprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|eyJ[\w-]{10,}\.eyJ[\w-]{10,})"
)
"""Keys with a known prefix: OpenAI, Stripe, GitHub, GitLab, Hugging Face, Slack, AWS, Google; and JWTs."""


def split_url(url: str, *, option: str, example: str, fix: str) -> SplitResult:
    """Split a URL. Reject an invalid one, and one that contains a key or password, since it would be saved.

    `option`: name of the setting, for errors; `fix`: how to pass a key instead. Errors do not repeat the URL.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not host:
        raise UserError(f"{option} must be a URL such as {example}")
    if parts.username or parts.password:
        raise UserError(f"{option} contains a password, which would be saved: {fix}")
    if any(is_secret_name(name) for name, _ in parse_qsl(parts.query, keep_blank_values=True)):
        raise UserError(f"{option} contains a key after its ?, which would be saved: {fix}")
    return parts


def reject_keys(command: Sequence[str], *, option: str, fix: str) -> None:
    """Reject a command line that contains a key, since it would be saved. Errors do not repeat the key.

    A key is recognised by its name (--api-key KEY, --token=KEY, KEY=value, a header), its prefix, or as a URL's
    password. A placeholder is not a key.
    """
    words = [word for argument in command for word in _words(argument)]
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, sign, value = word.partition("=")
        named = value if sign else following if word.startswith("-") and not following.startswith("-") else ""
        is_plain = PLAIN_VALUE.fullmatch(named) and "pass" not in name.lower()
        if is_secret_name(name) and is_literal(named) and not is_plain:
            raise UserError(f"{option} contains a key after {name[:40]}, which would be saved: {fix}")
        if any(map(_contains_key, (word, value))):
            raise UserError(f"{option} contains a key or a password, which would be saved: {fix}")


def is_secret_name(name: str) -> bool:
    """Return whether an option, variable or header with this name is a secret, judging by its last words."""
    words = re.findall("[a-z0-9]+", re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())
    before, last = ["", "", *words][-2:]
    if last == "key":
        return before not in PLAIN_KEYS
    return last in SECRET_WORDS or last.endswith(SECRET_ENDINGS)


def is_literal(value: str) -> bool:
    """Return whether there is any text besides placeholders."""
    return bool(PLACEHOLDER.sub("", value).strip())


def _words(word: str) -> list[str]:
    """Return the word and, if it is itself a command line (as after sh -c), the words in it."""
    try:
        inner = shlex.split(word) if any(map(str.isspace, word)) else []
    except ValueError:
        inner = word.split()
    return [word, *(inner_word for one in inner if one != word for inner_word in _words(one))]


def _contains_key(word: str) -> bool:
    bare = PLACEHOLDER.sub("", word)
    header = SECRET_HEADER.match(bare)
    if SECRET_SHAPES.search(bare) or (header and (is_secret_name(header[1]) or header[1].lower().endswith("cookie"))):
        return True
    try:
        parts = urlsplit(bare)
        names = [name for name, value in parse_qsl(parts.query) if value]
        return "://" in bare and (bool(parts.password) or any(map(is_secret_name, names)))
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
    """Read the key for a URL from `variable`, which the user named by `option`, or from the variable `default`.

    The default key may be for another host: it is not used for unencrypted connections to other machines. Errors do not
    repeat the name that the user gave: it may be the key itself.
    """
    if variable is None and parts.scheme == "http" and not is_local(parts.hostname or ""):
        return None
    key = environment.get(variable or default, "").strip()
    if variable is not None and not key:
        raise UserError(f"The variable that {option} names is not set: set it with export NAME=KEY.")
    if not (key.isascii() and key.isprintable()):
        where = f"the variable that {option} names" if variable is not None else default
        raise UserError(f"The key in {where} has characters that are not allowed in a key: set it again.")
    return key or None


def check_variable_name(value: str) -> str:
    """Return the name of a variable; ValueError, which does not repeat it, if it is not one, such as a key."""
    if not VARIABLE.fullmatch(value):
        raise ValueError("not the name of a variable: set a variable to the key, and give its name here")
    return value
