"""All mutants. `make mutants` runs them; each must make one of its tests fail.

An entry is (what goes wrong, text before, text after) under the file that it changes and the tests that must notice;
`within` names a function or class where the text is not unique in the file. Keep texts short: a test in `make test`
fails when one no longer occurs exactly once. Then write the entry for the new code, or remove it with the code that it
was about. A mutant that survives asks for a test, unless the change makes no difference.
"""

from mutants_in_algos import IN_ALGOS
from mutants_in_cluster import IN_CLUSTER
from mutants_in_data import IN_DATA
from mutants_in_engine import IN_ENGINE
from mutants_in_gateway import IN_GATEWAY
from mutants_in_render import IN_RENDER
from mutants_in_rewards import IN_REWARDS
from mutants_in_rollout import IN_ROLLOUT
from mutants_in_service import IN_SERVICE
from mutants_in_sharded import IN_SHARDED
from mutants_in_training import IN_TRAINING

MUTANTS = (
    *IN_ALGOS,
    *IN_DATA,
    *IN_TRAINING,
    *IN_SHARDED,
    *IN_ROLLOUT,
    *IN_RENDER,
    *IN_REWARDS,
    *IN_ENGINE,
    *IN_GATEWAY,
    *IN_SERVICE,
    *IN_CLUSTER,
)
