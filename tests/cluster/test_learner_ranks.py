"""The learner that a rank builds in its process."""

import pytest
import torch

pytest.importorskip("ray")

from turnwise.config.load import build
from turnwise.run import clustering
from turnwise.run.clustering import build_rank
from turnwise.run.resources import plan_without_limits
from turnwise.training.learner import LocalLearner


@pytest.mark.parametrize(("learners", "state", "sharded"), [(1, "auto", False), (1, "host", True), (2, "auto", True)])
def test_single_rank_is_sharded_only_to_offload(
    learners: int, state: str, sharded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = build({}, [("env.kind", "bandit"), ("cluster.learners", learners), ("train.optimizer_state", state)])
    config = config.model_copy(update={"model": config.model.model_copy(update={"name": "tiny", "warmup_steps": 0})})
    monkeypatch.setattr(clustering, "build_sharded_learner", lambda *arguments, **_: arguments)
    built = build_rank(config, plan_without_limits(config.train), None, 0)
    assert isinstance(built, tuple) == sharded
    assert sharded or type(built) is LocalLearner
    model = built[3] if isinstance(built, tuple) else built.model
    assert isinstance(model, torch.nn.Module)
