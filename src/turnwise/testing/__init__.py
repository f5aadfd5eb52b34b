"""Contract tests of the protocols, for a user's own environment, engine, learner, source, estimator, reward or tool.

    from turnwise.testing import check_env

    def test_coins():
        check_env(lambda: Coins(Task(env="coins", seed=0), random.Random(0)), replies=["heads", "tails"])

Each function raises AssertionError with a sentence that says what the protocol asks for. They need no test library, and
the tests of turnwise run them over its own implementations.
"""

from turnwise.testing.engines import check_engine, check_policy
from turnwise.testing.environments import check_env, check_group_reward, check_open_tool, check_reward, check_tool
from turnwise.testing.training import check_estimator, check_learner, check_source

__all__ = [
    "check_engine",
    "check_env",
    "check_estimator",
    "check_group_reward",
    "check_learner",
    "check_open_tool",
    "check_policy",
    "check_reward",
    "check_source",
    "check_tool",
]
