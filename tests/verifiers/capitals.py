"""An environment of verifiers' first generation, with a tool."""

import asyncio
import os
from typing import Any

from datasets import Dataset

import verifiers as vf

CAPITALS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Poland": "Warsaw", "Norway": "Oslo", "Peru": "Lima"}
HELD_OUT = 1
"""Countries that no training task has."""
FAULTS = ("", "nan", "-inf", "raise", "rewrite", "error", "hang", "die")
"""Faults of the environment in its evaluation tasks, which are the tests' held-out ones."""
COPIES = 10
"""Further training tasks with the same countries, so that there is one for validation."""


def look_up(country: str) -> str:
    """Look up the capital of a country."""
    return CAPITALS[country]


def names_capital(completion: Any, answer: str) -> float:
    return float(answer in completion[-1].content)


async def looks_it_up(completion: Any) -> float:
    return float(any(message.role == "tool" for message in completion))


async def is_faulty(info: Any) -> float:
    if info["fault"] == "raise":
        raise ValueError("the judge is away")
    return float(info["fault"]) if info["fault"] in ("nan", "-inf") else 0.0


class FaultyEnv(vf.ToolEnv):
    """Rewrites the history, raises, hangs or dies after a call, where the task says so."""

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        match state["info"]["fault"]:
            case "error":
                raise vf.ToolCallError
            case "hang":
                await asyncio.sleep(60)
            case "die":
                os._exit(7)
            case "rewrite":
                messages[0].content = "Another prompt."
        return await super().env_response(messages, state, **kwargs)


def load_environment(group: bool = False) -> vf.Environment:
    def best_of(completions: Any) -> list[float]:
        return [0.0 for _ in completions]

    rows = [{"question": f"Capital of {land}?", "answer": city} for land, city in CAPITALS.items()]
    held_out = [{**rows[0], "info": {"fault": fault}} for fault in FAULTS]
    return FaultyEnv(
        dataset=Dataset.from_list([{**row, "info": {"fault": ""}} for row in rows[HELD_OUT:] * COPIES]),
        eval_dataset=Dataset.from_list(held_out),
        system_prompt="Answer with the name alone.",
        tools=[look_up],
        max_turns=4,
        rubric=vf.Rubric(
            funcs=[names_capital, looks_it_up, best_of if group else is_faulty],
            weights=[1.0, 0.5, 1.0],
        ),
    )
