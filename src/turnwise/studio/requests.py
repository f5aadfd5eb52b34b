"""Runs that the studio is asked to start, and the command lines that start them."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from turnwise.settings.choice import KIND

ShortText = Annotated[str, StringConstraints(max_length=1000)]
LongText = Annotated[str, StringConstraints(max_length=20_000)]
SettingName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,200}$")]


class RunRequest(BaseModel):
    """A run to start, as the form describes it. Runs are named by their folders."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: Literal["train", "sft"] = "train"
    target: ShortText = ""
    """Recipe, environment, FILE.toml or FILE.py:Class."""
    like: ShortText = ""
    """Recipe whose settings the target takes."""
    start_from: ShortText = ""
    """Run whose settings the new run takes: a fork."""
    weights: bool = False
    """Whether a fork continues from the last checkpoint of its parent instead of its initial model."""
    resume: ShortText = ""
    """Run to continue."""
    settings: Annotated[dict[SettingName, LongText], Field(max_length=500)] = {}
    """Settings by dotted name, as they are typed on the command line."""

    @field_validator("target", "like", "start_from", "resume")
    @classmethod
    def check_word(cls, value: str) -> str:
        """An option in place of a name would be another command."""
        if value.startswith("-") or not value.isprintable():
            raise ValueError("must be a name that does not start with -")
        return value

    @model_validator(mode="after")
    def check_start(self) -> "RunRequest":
        if sum(map(bool, (self.target, self.start_from, self.resume))) != 1:
            raise ValueError("give one of target, start_from and resume")
        if self.weights and not self.start_from:
            raise ValueError("weights are those of start_from: give it")
        return self

    @property
    def overrides(self) -> list[tuple[str, str]]:
        return list(self.settings.items())

    @property
    def names_code(self) -> bool:
        """Whether reading the settings would run code of the user: FILE.py:name anywhere in the request."""
        return any(".py" in text for text in (self.target, *self.settings.values()))

    def spell(self) -> list[str]:
        """Return the words of the command line."""
        options = {"--like": self.like, "--from": self.start_from, "--resume": self.resume}
        return [
            self.command,
            *([self.target] if self.target else []),
            *(word for option, value in options.items() if value for word in (option, value)),
            *(f"--{self._option(name)}={value}" for name, value in self.settings.items()),
        ]

    def _option(self, name: str) -> str:
        """Return the option for a setting; `turnwise sft` has one of its own for the demonstrations."""
        return "demos" if (self.command, name) == ("sft", "sft.demos") else name.removesuffix(f".{KIND}")
