"""The commands: their modules and help texts, by group, from `commands.toml`."""

from dataclasses import dataclass

from cyclopts import Group

from turnwise.files.package_data import load_toml


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    group: Group
    path: str
    """module:app, imported when the command or its --help runs."""
    help: str


def _load_commands() -> dict[str, Command]:
    groups = load_toml("turnwise.cli", "commands.toml")
    titles = {title: Group(title, sort_key=position) for position, title in enumerate(groups)}
    return {
        name: Command(group=titles[title], **fields)
        for title, commands in groups.items()
        for name, fields in commands.items()
    }


COMMANDS = _load_commands()
