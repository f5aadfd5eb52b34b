"""Long output is shortened in its middle: how it began and how it ended tell the most."""


def shorten(text: str, most: int) -> str:
    """At most about `most` characters, with a note of how many were left out."""
    if len(text) <= most:
        return text
    head, tail = most - most // 2, most // 2
    return f"{text[:head]}\n[... {len(text) - head - tail} characters left out ...]\n{text[len(text) - tail :]}"
