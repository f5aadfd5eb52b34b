"""Dotted options: any setting can be given as `--algo.clip_high 0.28`."""

from collections.abc import Sequence

from turnwise.core.errors import UserError


def split_overrides(tokens: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """The tokens without the dotted options, and those as (key, text) in the order given.

    train frozen_lake --algo.clip_high 0.28 --seed 3 --train.steps=50
    -> [train frozen_lake --seed 3], [(algo.clip_high, 0.28), (train.steps, 50)]
    """
    rest: list[str] = []
    overrides: list[tuple[str, str]] = []
    remaining = iter(tokens)
    for token in remaining:
        name, equals, text = token.partition("=")
        if token == "--":
            return [*rest, token, *remaining], overrides
        if not (name.startswith("--") and "." in name):
            rest.append(token)
            continue
        if not equals:
            text = next(remaining, "--")
            if text.startswith("--"):
                raise UserError(f"{name} needs a value: {name} VALUE, or {name}=VALUE if the value starts with --")
        overrides.append((name.removeprefix("--"), text))
    return rest, overrides
