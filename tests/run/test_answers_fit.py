"""Solver answers fit into a recipe's token limit; otherwise `turnwise sft` would fail after minutes."""

import asyncio
from functools import partial

import pytest

from turnwise.core.task import Task
from turnwise.envs.registry import load_spec
from turnwise.envs.seeds import seed_for
from turnwise.models.loading.tiny import tiny_tokenizer
from turnwise.run.configure import configure
from turnwise.training.sft import play_demonstration, solver_script


@pytest.mark.parametrize("name", ["text_to_sql", "web_shop"])
def test_solver_answers_fit_into_max_new_tokens(name: str) -> None:
    config, tokenizer, longest = configure(name), tiny_tokenizer(), 0
    kind = load_spec(config.env.kind)
    for index in range(120):
        task = Task(env=kind.name, params=kind.check_params(config.env.params), seed=seed_for("train", index))
        exchanges, result = asyncio.run(
            play_demonstration(partial(kind.make, task), partial(solver_script, config.sft.think), attempts=3)
        )
        assert result.success
        longest = max(longest, *(len(tokenizer(exchange.answer)["input_ids"]) for exchange in exchanges))
    assert longest < config.rollout.max_new_tokens, "and one token that ends it"
