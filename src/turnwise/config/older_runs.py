"""Configurations of runs of earlier versions: their settings get the names of today, or are dropped."""

from typing import Any

from turnwise.algos.estimators import ESTIMATORS, OnPolicySettings
from turnwise.config.keys import all_keys, choice_of
from turnwise.config.old_names import BOUNDED, REMOVED, RENAMED
from turnwise.envs.agent.settings import AGENT_ENV
from turnwise.settings.choice import KIND
from turnwise.settings.values import NONE
from turnwise.user_code.references import is_reference

Settings = dict[str, Any]

TRAINS_VISION = {"language": False, "vision": "only", "both": True}
"""Value of lora.part -> of model.train_vision."""
UNREACHED = 1e-3
"""Target entropy of actions that never raises the coefficient, like an older algo.exploration without a target."""


def old_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings with names of earlier versions, by these names; not those that all runs have now."""
    found = {name: table[last] for name, table, last in _find(settings)}
    return {name: value for name, value in found.items() if name in RENAMED or value != REMOVED[name][0]}


def _find(settings: Settings) -> list[tuple[str, Settings, str]]:
    """Return the settings of earlier versions: name, table that contains it, and its name there."""
    found = []
    for name in (*RENAMED, *REMOVED):
        *path, last = name.split(".")
        table: Any = settings
        for part in path:
            table = table.get(part) if isinstance(table, dict) else None
        if isinstance(table, dict) and last in table and not isinstance(table[last], dict):
            found.append((name, table, last))
    return [each for each in found if not is_reference(each[1].get(KIND))]


def migrate(settings: Settings) -> Settings:
    """Rename the settings in place, and drop those that were removed.

    Those that the chosen alternatives do not have are dropped, too: they had no effect.
    """
    found = {name: table.pop(last) for name, table, last in _find(settings)}
    _adapt(settings, found)
    old = {name: value for name, value in found.items() if name in RENAMED}
    chosen = {name: value for name, value in old.items() if choice_of(RENAMED[name])}
    for name, value in [*chosen.items(), *((name, value) for name, value in old.items() if name not in chosen)]:
        if _applies(settings, name):
            _set(settings, RENAMED[name], value)
    if settings.get("archer") == {}:
        del settings["archer"]
    for key in all_keys().values():
        kind = _kind(settings, key.section) if key.kinds else ""
        if key.kinds and kind not in key.kinds and not is_reference(kind):
            _table(settings, key.section).pop(key.last, None)
    return settings


def _adapt(settings: Settings, old: dict[str, Any]) -> None:
    """Change what was said otherwise."""
    for name in ("command", "function"):
        if _table(settings, "agent").get(name) == NONE:
            del settings["agent"][name]
    if old.get("data.min_reward", NONE) != NONE:
        _set(settings, "data.keep", old["data.min_reward"])
    if _kind(settings, "engine") != all_keys()["engine"].default:
        old.pop("system.cache_share", None)
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
    _join_settings(settings, old)
    shares_trunk = _pop(old, "critic.encoder", "algo.estimator.encoder", "archer.encoder") == "policy"
    if ESTIMATORS.get(_kind(settings, "algo.estimator"), OnPolicySettings).trains_critic:
        _set(settings, "critic", "utterance_head" if shares_trunk else "utterances")


def _join_settings(settings: Settings, old: dict[str, Any]) -> None:
    """Write as one setting what were two."""
    for choice, prefix in BOUNDED.items():
        low, high = (_pop(old, f"algo.{choice}.{name}", f"algo.{prefix}_{name}") for name in ("low", "high"))
        if (low, high) != (None, None):
            _set(settings, f"algo.{choice}.bounds", [0.0 if low is None else low, 2.0 if high is None else high])
    level = old.get("algo.correction_level", _table(settings, "algo.correction").get("level", "token"))
    if _pop(old, "algo.correction.pool", "algo.correction_pool") == "mean" and level != "token":
        old.pop("algo.correction_level", None)
        _set(settings, "algo.correction.level", f"{level}_mean")
    whitens = old.get("algo.whiten", _table(settings, "algo.advantage").get("whiten", True))
    if _pop(old, "algo.advantage.whiten_over", "algo.whiten_over") == "token" and whitens:
        is_of_turns = _kind(settings, "algo.advantage") in ("turn_gae", "step_gae")
        old["algo.whiten"] = "token" if is_of_turns else whitens

    part = _pop(old, "lora.part")
    if part in TRAINS_VISION and _table(settings, "lora").get("rank"):
        _set(settings, "model.train_vision", TRAINS_VISION[part])
    tokens = _pop(old, "context.tokens", "context.summary_tokens")
    author = _pop(old, "context.by", "context.summary_by")
    if (summary := author if author not in (None, "model") else tokens) is not None:
        _set(settings, "context.summary", summary)
    every = [steps for name in ("information", "gradients") if (steps := _pop(old, f"diagnose.{name}_every"))]
    if every:
        _set(settings, "diagnose.every", min(every))
    undoes = _pop(old, "diagnose.rollbacks", "diagnose.max_rollbacks")
    if _pop(old, "diagnose.act"):
        _set(settings, "diagnose.answer", "adjust")
    if old.pop("diagnose.rollback", True) and undoes:
        _set(settings, "diagnose.answer", "roll_back")
    rounds, retry = _pop(old, "rollout.retry.rounds"), _table(settings, "rollout").pop("retry", {})
    if "unsolved" in (_pop(old, "rollout.retry"), retry.get(KIND)):
        _set(settings, "rollout.retry_unsolved", rounds or 1)
    target, exploration = _pop(old, "algo.exploration.target"), _table(settings, "algo").pop("exploration", {})
    if "action_entropy" in (_pop(old, "algo.exploration"), exploration.get(KIND)):
        _set(settings, "algo.action_entropy_target", UNREACHED if target in (None, NONE) else target)
    limit = _pop(old, "agent.timeout_s")
    if limit is not None and _table(settings, "env").get(KIND) == AGENT_ENV:
        _set(settings, "rollout.timeout_s", limit)
    rules = {"timeout": _pop(old, "agent.on_timeout"), "crash": _pop(old, "agent.on_crash")}
    if failures := [failure for failure, rule in rules.items() if rule not in (None, "retry")]:
        _set(settings, "agent.train_on", failures)


def _pop(old: dict[str, Any], *names: str) -> Any:
    """Remove a setting that has had these names, and return its value; None if it was not given."""
    values = [old.pop(name) for name in names if name in old]
    return values[0] if values else None


def _applies(settings: Settings, name: str) -> bool:
    """Return whether the alternative that is chosen has the setting."""
    key = all_keys()[RENAMED[name]]
    if not key.kinds:
        return True
    kind = _kind(settings, key.section)
    owner = {"algo.awr_beta": "awr", "algo.dpo_beta": "dpo"}.get(name, kind)
    return kind in key.kinds and kind == owner


def _table(settings: Settings, path: str) -> Settings:
    table: Any = settings
    for part in path.split("."):
        table = table.get(part, {})
    return table


def _kind(settings: Settings, name: str) -> str:
    return str(_table(settings, name).get(KIND, all_keys()[name].default))


def _set(settings: Settings, name: str, value: Any) -> None:
    key, table = all_keys()[name], settings
    for part in key.section.split(".") if key.section else []:
        table = table.setdefault(part, {})
    table[key.last] = {**table.get(key.last, {}), KIND: value} if key.choice is not None else value
