"""Three agents pass a word on, each hears only the one before it.

python examples/telephone/telephone.py
"""

import random

import turnwise as tw

WORDS = ("red", "green", "blue", "black", "white")


class Telephone(tw.RolesEnv):
    """Pass on the word that you hear."""

    roles = ("first", "second", "third")
    max_turns = 1

    def begin(self, rng: random.Random) -> tw.RolesOutcome:
        self.word = self.heard = rng.choice(WORDS)
        return tw.tell({"first": f"The word is {self.word}."})

    def act(self, role: str, action: str) -> tw.RolesOutcome:
        if action not in WORDS:
            raise ValueError(f"Choose {', '.join(WORDS)}.")
        own = {role: 0.5 * (action == self.heard)}
        self.heard = action
        if role != "third":
            following = self.roles[self.roles.index(role) + 1]
            return tw.tell({following: f"The word is {action}."}, rewards=own)
        arrived = action == self.word
        rewards = {name: own.get(name, 0.0) + 0.5 * arrived for name in self.roles}
        return tw.finish(rewards=rewards, winners=self.roles if arrived else ())

    def random_move(self, role: str, rng: random.Random) -> str:
        return rng.choice(WORDS)
