"""Configurations of runs of earlier versions: their settings get the names of today."""

from typing import Any

from turnwise.config.keys import all_keys, choice_of
from turnwise.config.old_names import RENAMED
from turnwise.settings.choice import KIND

Settings = dict[str, Any]


def old_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings with names of earlier versions, by these names."""
    old = {}
    for name in RENAMED:
        section, _, last = name.partition(".")
        table = settings.get(section)
        if isinstance(table, dict) and last in table and not isinstance(table[last], dict):
            old[name] = table[last]
    return old


def migrate(settings: Settings) -> Settings:
    """Rename the settings in place. Those that the chosen alternatives do not have are dropped: they had no effect."""
    old = old_settings(settings)
    for name in old:
        section, _, last = name.partition(".")
        del settings[section][last]
    _adapt(settings, old)
    chosen = {name: value for name, value in old.items() if choice_of(RENAMED[name])}
    for name, value in [*chosen.items(), *((name, value) for name, value in old.items() if name not in chosen)]:
        if _applies(settings, name):
            _set(settings, RENAMED[name], value)
    if settings.get("archer") == {}:
        del settings["archer"]
    return settings


def _adapt(settings: Settings, old: dict[str, Any]) -> None:
    """Change what was said otherwise."""
    if old.get("algo.reject") == "none" and old.get("algo.reject_veto"):
        old["algo.reject"] = "veto"
    if _kind(settings, "algo.loss") == "gpg":
        _set(settings, "algo.loss", "reinforce")
    if _kind(settings, "algo.filter") == "top_count" and "algo.filter_value" in old:
        _set(settings, "algo.filter.count", int(old.pop("algo.filter_value")))
    if old.get("algo.method", "on_policy") != "on_policy":
        _set(settings, "algo.estimator", old["algo.method"])
        for name in ("gamma_turn", "whiten"):
            if f"algo.{name}" in old:
                _set(settings, f"algo.estimator.{name}", old[f"algo.{name}"])


def _applies(settings: Settings, name: str) -> bool:
    """Return whether the alternative that is chosen has the setting."""
    key = all_keys()[RENAMED[name]]
    if not key.kinds:
        return True
    kind = _kind(settings, key.section)
    owner = {"algo.awr_beta": "awr", "algo.dpo_beta": "dpo"}.get(name, kind)
    return kind in key.kinds and kind == owner


def _kind(settings: Settings, name: str) -> str:
    table: Any = settings
    for part in name.split("."):
        table = table.get(part, {})
    return str(table.get(KIND, all_keys()[name].default))


def _set(settings: Settings, name: str, value: Any) -> None:
    key, table = all_keys()[name], settings
    for part in key.section.split("."):
        table = table.setdefault(part, {})
    table[key.last] = {**table.get(key.last, {}), KIND: value} if key.choice is not None else value
