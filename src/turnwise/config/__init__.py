"""Frozen pydantic models, TOML and dotted overrides; an unknown key is an error."""
