"""Settings of the environment, and of environments to mix in."""

from typing import Annotated, Any

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from turnwise.envs.agent.settings import AGENT_ENV
from turnwise.settings.needs import (
    AGENT,
    ENVIRONMENT,
    LOCAL_EPISODES,
    ONE_ENVIRONMENT,
    WHOLE_CONTEXT,
    Lack,
    Need,
    Package,
)
from turnwise.settings.section import Section, is_plain


class MixedEnv(Section):
    """Entry of `env.mix`."""

    kind: str
    """Name of a built-in environment, or FILE.py:Class; default: the entry's name."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Tasks of this environment for each task of env.kind."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Parameters of this environment."""


NO_ENV = "none"
"""`env.kind` of SFT without an environment."""


class EnvConfig(Section):
    """Environment, its parameters, and environments to mix in."""

    kind: str = "frozen_lake"
    """Name of a built-in environment, or FILE.py:Class; "none" (SFT only): no environment; "agent": see agent."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Parameters of the environment; `turnwise envs NAME` lists them."""
    mix: dict[str, Any] = Field(default_factory=dict)
    """Further environments by name: a weight (env.kind has 1), or a table of kind, weight and params."""

    @model_validator(mode="before")
    @classmethod
    def gather_params(cls, table: Any) -> Any:
        """Move keys of the table that are not fields into `params`."""
        if not isinstance(table, dict) or not isinstance(table.get("params", {}), dict):
            return table
        known = {name: value for name, value in table.items() if name in cls.model_fields}
        params = {name: value for name, value in table.items() if name not in known}
        return known | {"params": params | known.get("params", {})} if params else table

    def mixed(self) -> dict[str, MixedEnv]:
        """Return the entries of `mix`. A name that is not an environment's needs a kind."""
        tables = {name: entry if isinstance(entry, dict) else {"weight": entry} for name, entry in self.mix.items()}
        return {name: MixedEnv.model_validate({"kind": name, **table}) for name, table in tables.items()}

    @model_validator(mode="after")
    def check_agent_alone(self) -> "EnvConfig":
        if self.kind == AGENT_ENV and self.mix:
            raise ValueError("env.mix adds environments, and an agent trains on its own tasks alone. Remove env.mix.")
        return self

    def packages(self) -> list[Package]:
        return [Package("An agent", "starlette", "gateway")] if self.kind == AGENT_ENV else []

    def needs(self) -> list[Need]:
        if self.kind != AGENT_ENV:
            return []
        return [
            Need(WHOLE_CONTEXT, "An agent decides itself what it sends to the model"),
            Need(LOCAL_EPISODES, "An agent runs beside an engine in this process"),
        ]

    def lacks(self) -> dict[str, Lack]:
        is_agent = self.kind == AGENT_ENV
        missing, fix = (
            (ENVIRONMENT, "set env.kind to an environment")
            if is_agent
            else (AGENT, "set agent.command or agent.function")
        )
        lacks = {missing: Lack(f"env.kind {self.kind}", "is not one" if is_agent else "is an environment", fix)}
        if self.mix:
            lacks[ONE_ENVIRONMENT] = Lack("env.mix", "adds others", "leave out env.mix")
        return lacks

    @field_validator("mix")
    @classmethod
    def check_mix(cls, mix: dict[str, Any]) -> dict[str, Any]:
        try:
            cls.model_construct(mix=mix).mixed()
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(
                f"env.mix has {'.'.join(map(str, first['loc']))} = {first['input']!r} ({first['msg']}): give each "
                "environment a weight above 0, or a table of kind, weight and params"
            ) from None
        return mix

    @field_validator("params", "mix")
    @classmethod
    def check_plain(cls, params: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        for name, value in params.items():
            if not is_plain(value):
                raise ValueError(
                    f"env.{info.field_name}.{name} = {value!r} must be text, a finite number, true, false, none, "
                    "or a list or table of these, so that config.toml can store it"
                )
        return params
