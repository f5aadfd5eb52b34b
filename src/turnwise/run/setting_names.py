"""Names in settings, checked before torch is imported: that takes seconds, and a mistyped name should not."""

from collections.abc import Collection
from pathlib import Path

from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.engine.engines import ENGINES
from turnwise.files.run_folders import CONFIG_FILE
from turnwise.models.loading.catalogue import model_names
from turnwise.record.trackers import check_trackers
from turnwise.text.suggestions import suggest
from turnwise.user_code.references import is_reference

ALGORITHMS: dict[str, tuple[str, ...]] = {
    "algo.advantage": (
        *("gae", "turn_gae", "step_gae", "bi_level_gae"),
        *("grpo", "dr_grpo", "rloo", "opo", "gpg", "pass_at_k", "reinforce_pp_baseline", "gigpo", "turn_grpo"),
        *("reinforce", "reinforce_pp", "remax", "arpo", "brpo", "clone", "preference"),
    ),
    "algo.loss": (
        *("ppo", "gspo", "cispo", "sapo", "geo_mean", "clip_cov", "kl_cov", "vespo"),
        *("gpg", "reinforce", "awr", "dpo"),
    ),
    "algo.correction": ("none", "decoupled", "truncated", "masked", "two_sided"),
    "algo.normalise": ("identity", "mean", "mean_std", "asym_clip"),
    "algo.filter": ("none", "top_p", "top_p_softmax", "top_k", "top_count", "quarter", "absolute", "min_p"),
    "algo.filter_by": ("reward_std", "reward", "reward_sum", "entropy", "entropy_std", "length"),
    "algo.aggregation": ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"),
}
"""Keys of the tables in `algos`, whose modules import torch; a test keeps both equal."""

CHOICES: dict[str, Collection[str]] = {**ALGORITHMS, "engine.kind": ENGINES}
"""Settings whose values are the keys of a table."""

FUNCTIONS = ("algo.advantage", "algo.loss", "algo.filter")
"""Settings of ALGORITHMS that also take FILE.py:function."""

CONFUSED = {
    ("algo.advantage", "ppo"): " PPO is a loss, and the default one. Its advantage is gae.",
    ("algo.loss", "grpo"): " GRPO is an advantage: set algo.advantage grpo. Its loss is ppo, the default.",
    ("algo.loss", "dapo"): " DAPO is several settings: set algo.preset dapo.",
    ("algo.advantage", "dapo"): " DAPO is several settings: set algo.preset dapo.",
    ("algo.loss", "gae"): " GAE is an advantage: set algo.advantage gae. Its loss is ppo, the default.",
}
"""Hints for names of the field that belong to another setting."""

DEVICES = ("auto", "cpu", "cuda")


def check_names(config: Config) -> None:
    """Raise UserError for an unknown algorithm, engine, device or tracker."""
    for key, options in CHOICES.items():
        section, _, name = key.partition(".")
        chosen = getattr(getattr(config, section), name)
        if chosen in options or (key in FUNCTIONS and is_reference(chosen)):
            continue
        if key in FUNCTIONS and chosen.endswith(".py"):
            raise UserError(f'{key} "{chosen}" names no function: write {chosen}:NAME')
        raise UserError(f'Unknown {key} "{chosen}":{CONFUSED.get((key, chosen)) or suggest(chosen, options)}')
    if config.model.device.partition(":")[0] not in DEVICES:
        raise UserError(f'Unknown model.device "{config.model.device}": use "auto", "cpu" or "cuda"')
    check_trackers(config.record.trackers)


def check_model_name(config: Config) -> None:
    """Raise UserError for a name that is neither in the catalogue nor a file or folder, and cannot be on the hub.

    `cluster plan` loads no model, so it also takes names of shapes, such as qwen2.5-7b.
    """
    name = config.model.name
    if name in model_names() or (name and Path(name).expanduser().exists()):
        return
    if Path(name).is_absolute():
        raise UserError(f"model.name: {name} does not exist. Check the path, or restore it if it was moved.")
    if "/" in name and not name.endswith(".gguf"):  # perhaps on the hub, which `check_hub` asks
        return
    if (run := Path(config.record.folder) / name) and (run / CONFIG_FILE).is_file():
        raise UserError(f'Unknown model "{name}": did you mean the run "{run}"?')
    raise UserError(
        f'Unknown model "{name}":{suggest(name, model_names())} '
        "(or give a hub name (owner/name), or a folder or .gguf file that exists)"
    )
