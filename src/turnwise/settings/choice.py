"""A setting that chooses one of several alternatives, each a class with its own settings beside its code.

    class Ppo(Loss, kind="ppo"):
        clip_low: NonNegative = 0.2

    LOSSES = choices(Ppo, Gspo)                                      # by name, the default first
    loss: Annotated[Loss, OneOf(setting="algo.loss", table=LOSSES, base=Loss)] = Ppo()   # in a section

Files have `loss = "gspo"`, or a table with `kind` and its settings; the kind FILE.py:name is a class of the user's, or
a function that `from_function` of the base class makes one of.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Self, TypeVar

from pydantic import ConfigDict, GetCoreSchemaHandler, PrivateAttr, ValidationError, ValidationInfo, model_serializer
from pydantic_core import core_schema

from turnwise.core.errors import UserError
from turnwise.settings.section import Section
from turnwise.text.suggestions import suggest
from turnwise.user_code.references import is_reference, load_function

KIND = "kind"
LOAD_CODE = "load_code"
"""Key of pydantic's validation context. Where it is not true, FILE.py:name is kept as it is and its file not read."""


class Choice(Section):
    """One of several alternatives."""

    name: ClassVar[str] = ""
    """Name of a built-in alternative."""
    implied_by: ClassVar[str] = ""
    """A setting of its own that chooses it where no kind is given: agent.command chooses the agent command."""
    _reference: str = PrivateAttr("")

    def __init_subclass__(cls, kind: str = "", **others: Any) -> None:
        super().__init_subclass__(**others)
        cls.name = kind

    @property
    def kind(self) -> str:
        """Its name, or the user's FILE.py:name."""
        return self._reference or self.name

    def with_reference(self, reference: str) -> Self:
        """Return a copy of a user's alternative under another FILE.py:name."""
        copy = self.model_copy()
        copy._reference = reference
        return copy

    @classmethod
    def from_function(cls, function: Callable[..., Any]) -> type[Self]:
        """Return an alternative without settings that calls the user's function."""
        raise UserError(f"{function.__name__} is a function: write a class instead, derived from {cls.__name__}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a user's alternative by its reference: another process loads the file itself."""
        if not self._reference:
            return super().__reduce__()  # type: ignore[return-value]
        settings = {name: getattr(self, name) for name in type(self).model_fields}
        ours = next(each for each in type(self).__mro__ if each.__module__.startswith("turnwise.") and _is_global(each))
        return _restore, (ours, self._reference, settings)

    @model_serializer(mode="wrap")
    def _with_kind(self, serialize: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return {KIND: self.kind} | serialize(self)


def _is_global(cls: type) -> bool:
    return "<locals>" not in cls.__qualname__


def _restore(base: type[Choice], reference: str, settings: dict[str, Any]) -> Choice:
    return load_class(reference, base, reference, ()).model_validate(settings).with_reference(reference)


AnyChoice = TypeVar("AnyChoice", bound=Choice)


def choices(*classes: type[AnyChoice]) -> dict[str, type[AnyChoice]]:
    return {each.name: each for each in classes}


class ChoiceError(ValueError):
    """Invalid settings of a chosen alternative."""

    def __init__(self, one_of: "OneOf", kind: str, chosen: type[Choice], error: ValidationError) -> None:
        super().__init__(f"{one_of.setting} {kind}: {error}")
        self.one_of, self.setting, self.kind, self.chosen, self.error = one_of, one_of.setting, kind, chosen, error


@dataclass(frozen=True, slots=True, kw_only=True)
class OneOf:
    """Annotation of a field whose value is one of the classes of a table."""

    setting: str
    table: Mapping[str, type[Choice]]
    base: type[Choice] | None = None
    """Base class of a user's alternative, FILE.py:name; None: there are only those of the table."""
    hints: Mapping[str, str] = field(default_factory=dict)
    """Names of the field that belong to another setting, each with what to write instead."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        def read(value: Any, info: ValidationInfo) -> Choice:
            return self._read(value, load_code=bool((info.context or {}).get(LOAD_CODE)))

        return core_schema.with_info_plain_validator_function(
            read,
            json_schema_input_schema=core_schema.union_schema([core_schema.str_schema(), core_schema.dict_schema()]),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda value: value.model_dump()),
        )

    def _read(self, value: Any, *, load_code: bool) -> Choice:
        if isinstance(value, Choice):
            return value
        table = {KIND: value} if isinstance(value, str) else value
        if not isinstance(table, Mapping):
            raise ValueError(f"{self.setting} = {value!r}: must be {self.describe()}, or a table with its {KIND}")
        kind = self._kind(table)
        settings = {name: setting for name, setting in table.items() if name != KIND}
        found = self._class(kind, load_code=load_code)
        try:
            chosen = found.model_validate(settings)
        except ValidationError as error:
            raise ChoiceError(self, str(kind), found, error) from None
        if kind not in self.table:
            chosen._reference = str(kind)
        return chosen

    def _kind(self, table: Mapping[str, Any]) -> Any:
        """Return the kind that is given, or else the one that a setting implies; the default without either."""
        default = next(iter(self.table), None)
        implied = [kind for kind, chosen in self.table.items() if chosen.implied_by and chosen.implied_by in table]
        if len(implied) > 1:
            names = " and ".join(f"{self.setting}.{self.table[kind].implied_by}" for kind in implied)
            raise ValueError(f"{names} both name the {self.setting}. Remove one of them.")
        given = table.get(KIND, default)
        if implied and given not in (default, implied[0]):
            name = f"{self.setting}.{self.table[implied[0]].implied_by}"
            raise ValueError(f"{name} contradicts {self.setting} {given}. Remove one of them.")
        return implied[0] if implied else given

    def _class(self, kind: Any, *, load_code: bool) -> type[Choice]:
        if isinstance(kind, str) and kind in self.table:
            return self.table[kind]
        if self.base is not None and is_reference(kind):
            return load_class(kind, self.base, self.setting, tuple(self.table)) if load_code else unread(self.base)
        if self.base is not None and isinstance(kind, str) and kind.endswith(".py"):
            raise ValueError(f'{self.setting} "{kind}" names no class or function: write {kind}:NAME')
        if not self.table:
            raise ValueError(f'{self.setting} "{kind}" is not FILE.py:name. Write the file and the name in it.')
        near = self.hints.get(str(kind)) or suggest(str(kind), self.table)
        raise ValueError(f'Unknown {self.setting} "{kind}":{near}')

    def spell(self, kinds: Sequence[str]) -> str:
        """Return how to choose one of these kinds: "choose gspo, sapo", or "set agent.command"."""
        implied = [self.table[kind].implied_by for kind in kinds]
        if all(implied):
            return "set " + " or ".join(f"{self.setting}.{name}" for name in implied)
        return f"choose {', '.join(kinds)}"

    def describe(self) -> str:
        names = "one of " + ", ".join(self.table) if self.table else ""
        return ", or ".join(filter(None, (names, "FILE.py:name" if self.base else "")))


def load_class(reference: str, base: type[Choice], setting: str, names: tuple[str, ...]) -> type[Choice]:
    """Load the user's class, or make one of the user's function."""
    loaded = load_function(reference, setting, names)
    if not isinstance(loaded, type):
        return _class_of_function(base, loaded)
    if not issubclass(loaded, base):
        raise UserError(f'{setting} "{reference}" is a class that is not derived from tw.{base.__name__}. Derive it.')
    if missing := sorted(loaded.__abstractmethods__):
        raise UserError(f'{setting} "{reference}" has no {missing[0]}: define it.')
    return loaded


@cache
def _class_of_function(base: type[Choice], function: Callable[..., Any]) -> type[Choice]:
    return base.from_function(function)


@cache
def unread(base: type[AnyChoice]) -> type[AnyChoice]:
    """Return the class of a user's alternative whose file was not read. It keeps all settings, and cannot compute."""
    methods = dict.fromkeys(base.__abstractmethods__, _refuse_unread)
    return type(base.__name__, (base,), {"model_config": ConfigDict(extra="allow"), **methods})


def _refuse_unread(choice: Choice, *_: Any) -> Any:
    raise RuntimeError(f"{choice.kind} was not read: build the settings with load_code.")
