"""All mutants. `make mutants` runs them; each must make one of its tests fail."""

from mutants_in_algos import IN_ALGOS
from mutants_in_data import IN_DATA
from mutants_in_engine import IN_ENGINE
from mutants_in_render import IN_RENDER
from mutants_in_rewards import IN_REWARDS
from mutants_in_rollout import IN_ROLLOUT
from mutants_in_train import IN_TRAIN

MUTANTS = (*IN_ALGOS, *IN_DATA, *IN_TRAIN, *IN_ROLLOUT, *IN_RENDER, *IN_REWARDS, *IN_ENGINE)
