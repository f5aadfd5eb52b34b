"""Environments of verifiers' first generation: of one turn, of several turns, and with tools that have state."""

from typing import Any

from datasets import Dataset

import verifiers as vf

NUMBERS = tuple(range(10, 30))


def repeats(completion: Any, answer: str) -> float:
    return float(completion[-1].content.strip() == answer)


def make_single_turn(dataset: Dataset) -> vf.Environment:
    return vf.SingleTurnEnv(dataset=dataset, rubric=vf.Rubric(funcs=[repeats], weights=[1.0]))


class CountdownEnv(vf.MultiTurnEnv):
    """Asks for the number three times, one less each time, and ends after the third reply."""

    async def setup_state(self, state: Any) -> Any:
        state["asked"], state["right"] = int(state["answer"]), 0
        return state

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        state["right"] += messages[-1].content.strip() == str(state["asked"])
        state["asked"] -= 1
        if state["asked"] == int(state["answer"]) - 3:
            state["final_env_response"] = [{"role": "user", "content": "Thank you."}]
        return [{"role": "user", "content": f"And now {state['asked']}?"}]


def share_right(state: Any) -> float:
    return float(state["right"]) / 3


def make_multi_turn(dataset: Dataset) -> vf.Environment:
    return CountdownEnv(dataset=dataset, rubric=vf.Rubric(funcs=[share_right], weights=[1.0]), max_turns=8)


class SafeEnv(vf.StatefulToolEnv):
    """A safe that opens with the number of the task, which the agent's calls do not contain."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_tool(self.turn, args_to_skip=["combination", "opened"])

    async def turn(self, number: int, combination: int, opened: list[int]) -> str:
        """Turn the dial to a number."""
        if number == combination:
            opened.append(number)
        return "It opens." if number == combination else "Nothing."

    async def setup_state(self, state: Any) -> Any:
        state["opened"] = []
        return state

    def update_tool_args(self, tool_name: str, tool_args: Any, messages: Any, state: Any, **kwargs: Any) -> Any:
        return {**tool_args, "combination": int(state["answer"]), "opened": state["opened"]}


def is_open(state: Any) -> float:
    return float(bool(state["opened"]))


def make_stateful(dataset: Dataset) -> vf.Environment:
    return SafeEnv(dataset=dataset, rubric=vf.Rubric(funcs=[is_open], weights=[1.0]), max_turns=5)


KINDS = {"single": make_single_turn, "multi": make_multi_turn, "stateful": make_stateful}


def load_environment(kind: str = "single") -> vf.Environment:
    rows = [{"question": f"The number is {number}. Repeat it.", "answer": str(number)} for number in NUMBERS]
    return KINDS[kind](Dataset.from_list(rows))
