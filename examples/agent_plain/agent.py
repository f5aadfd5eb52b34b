"""An agent without a framework: a loop around OpenAI's client that plays a guessing game.

    turnwise train examples/agent_plain/agent.toml

Nothing in this file knows turnwise but the two words for the result.
"""

import random
import re
from typing import Any

from openai import AsyncOpenAI

import turnwise as tw

MAX_GUESSES = 2


async def play(client: AsyncOpenAI, task: dict[str, Any]) -> tw.Outcome:
    """Guess a number; the reward is higher the fewer guesses were needed."""
    rules = f"I think of a number between 1 and {task['largest']}. Guess it. Answer with a number alone."
    messages: list[Any] = [{"role": "user", "content": rules}]
    for guess in range(MAX_GUESSES):
        reply = await client.chat.completions.create(model="policy", messages=messages)
        answer = reply.choices[0].message.content or ""
        found = re.search(r"\d+", answer)
        number = int(found[0][:9]) if found else 0
        if number == task["secret"]:
            return tw.won(reward=1.0 - guess / (2 * MAX_GUESSES))
        hint = "That is not a number." if found is None else "Higher." if number < task["secret"] else "Lower."
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": hint}]
    return tw.lost()


def random_reply(text: str, rng: random.Random) -> str:
    """Draw a reply of the right form. `tiny` knows no words, so its warm-up learns these first."""
    return str(rng.randint(1, 3))
