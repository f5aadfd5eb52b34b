"""Actions of an environment by their JSON schema: describe them in the prompt, and read them from answers."""

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.core.messages import ToolSpec
from turnwise.envs.adapters.openenv.wire import CALL_TOOL, LIST_TOOLS
from turnwise.envs.answers import format_answer, match_name
from turnwise.text.truncation import shorten
from turnwise.tools.signature import example_arguments, format_signature, random_arguments

OURS = ("metadata",)
"""Fields of every action that are not for the agent."""
MAX_FIELD_CHARS = 300
SCALARS = ("string", "integer", "number", "boolean")
TRUTH = {"true": True, "false": False}


def has_tools(schema: Mapping[str, Any]) -> bool:
    """Return whether the environment's actions are calls of tools: their type says so, or they have no fields."""
    fields = _fields(schema)
    kind = fields.get("type", {})
    return not fields or (isinstance(kind, dict) and kind.get("const") in (CALL_TOOL, LIST_TOOLS))


def _fields(schema: Mapping[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    return {name: schema for name, schema in properties.items() if name not in OURS and isinstance(schema, dict)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionSpec:
    """The fields of an action."""

    spec: ToolSpec
    """The fields as arguments of a tool, for their signature and examples."""

    @classmethod
    def from_schema(cls, schema: Mapping[str, Any]) -> "ActionSpec":
        required, definitions = schema.get("required"), schema.get("$defs")
        definitions = definitions if isinstance(definitions, dict) else {}
        fields = {name: _resolve(field, definitions) for name, field in _fields(schema).items()}
        parameters = {
            "properties": fields,
            "required": [name for name in required if name in fields] if isinstance(required, list) else [],
            "$defs": definitions,
        }
        return cls(spec=ToolSpec(name="action", description="", parameters=parameters))

    @property
    def fields(self) -> Mapping[str, Mapping[str, Any]]:
        fields: Mapping[str, Mapping[str, Any]] = self.spec.parameters["properties"]
        return fields

    @property
    def sole(self) -> str | None:
        """The field whose value alone is an answer: the only one, or the only required one, without structure."""
        required = self.spec.parameters["required"]
        names = required if len(required) == 1 else list(self.fields)
        if len(names) != 1:
            return None
        schema = self.fields[names[0]]
        return names[0] if schema.get("type") in SCALARS or _choices(schema) else None

    @property
    def is_text(self) -> bool:
        """Return whether the answer is any text."""
        return self.sole is not None and self.fields[self.sole].get("type") == "string" and not self.choices

    @property
    def choices(self) -> list[str]:
        """Texts that the sole field may have; empty if it is not a choice among some."""
        return [] if self.sole is None else _choices(self.fields[self.sole])

    def describe(self) -> str:
        """Describe the fields and the format of an answer, for the prompt."""
        lines = [f"Action: {format_signature(self.spec).removeprefix('action')}"]
        for name, schema in self.fields.items():
            if isinstance(text := schema.get("description"), str) and text:
                lines.append(f"- {name}: {shorten(' '.join(text.split()), MAX_FIELD_CHARS)}")
        sole = self.sole
        example = json.dumps(example_arguments(self.spec), ensure_ascii=False) if sole is None else sole.upper()
        lines.append(f"Answer: {format_answer([example])}. You may think first: <think>thoughts</think>.")
        return "\n".join(lines)

    def read(self, answer: str) -> dict[str, Any]:
        """Return the action of an answer. Raises ValueError, whose text is for the agent."""
        action = _read_object(answer)
        if action is not None and set(action) <= set(self.fields) and (self.sole is None or self.sole in action):
            return action
        if self.sole is not None:
            return {self.sole: self._read_value(answer)}
        if action is None:
            raise ValueError("the answer is not a JSON object")
        raise ValueError(f"unknown fields: {', '.join(sorted(set(action) - set(self.fields)))}")

    def _read_value(self, answer: str) -> Any:
        if self.choices:
            return match_name(answer, self.choices)
        match self.fields[self.sole or ""].get("type"):
            case "integer":
                return _whole(answer)
            case "number":
                return _finite(answer)
            case "boolean":
                return TRUTH[match_name(answer, list(TRUTH))]
        return answer

    def random(self, rng: random.Random, words: Sequence[str]) -> str:
        """Return a random answer that fits the schema; texts are some of `words`."""
        if self.choices:
            return rng.choice(self.choices)
        values = random_arguments(self.spec, rng, words)
        value = values if self.sole is None else values[self.sole]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _resolve(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Follow a reference to a definition, as enumerations have one; the field's own description stays."""
    target = definitions.get(str(schema.get("$ref", "")).removeprefix("#/$defs/"))
    return {**(target if isinstance(target, dict) else {}), **schema}


def _choices(schema: Mapping[str, Any]) -> list[str]:
    options = schema.get("enum")
    return (
        options if isinstance(options, list) and options and all(isinstance(option, str) for option in options) else []
    )


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("a whole number is needed") from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a finite number is needed")
    return value


def _read_object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
