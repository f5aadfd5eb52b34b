"""Resources of the actors of a run, and the errors about machines that lack them. No Ray is started."""

import pytest

from turnwise.cluster.placement import ActorSlot, check_capacity, count_placeable, plan_placement
from turnwise.config.resources import ClusterConfig
from turnwise.core.errors import UserError


def test_placement_colocated_pairs_share_a_bundle() -> None:
    plan = plan_placement(ClusterConfig(engines=2, learners=3), gpus_per_engine=1)
    assert plan.bundles == ({"CPU": 1.0, "GPU": 1.0},) * 3
    assert [slot.bundle for slot in plan.engines] == [0, 1]
    assert [slot.bundle for slot in plan.learners] == [0, 1, 2]
    assert plan.engines[0] == plan.learners[0] == ActorSlot(bundle=0, cpus=0.5, gpus=0.5)
    assert plan.learners[2] == ActorSlot(bundle=2, cpus=1.0, gpus=1.0)


def test_placement_disaggregated_gives_each_actor_a_bundle() -> None:
    settings = ClusterConfig(engines=1, learners=2, placement="disaggregated", cpus=4)
    plan = plan_placement(settings, gpus_per_engine=2)
    assert plan.bundles == ({"CPU": 4.0, "GPU": 2.0}, {"CPU": 4.0, "GPU": 1.0}, {"CPU": 4.0, "GPU": 1.0})
    assert [slot.bundle for slot in (*plan.engines, *plan.learners)] == [0, 1, 2]
    assert plan.engines[0].threads == 4


def test_placement_gives_each_environment_worker_a_cpu() -> None:
    plan = plan_placement(ClusterConfig(engines=1, learners=1, env_workers=2, cpus=4), gpus_per_engine=1)
    assert plan.bundles == ({"CPU": 4.0, "GPU": 1.0}, {"CPU": 1.0}, {"CPU": 1.0})
    assert plan.env_workers == (ActorSlot(bundle=1, cpus=1, gpus=0), ActorSlot(bundle=2, cpus=1, gpus=0))
    assert plan_placement(ClusterConfig(env_workers=1), gpus_per_engine=1).bundles == ({"CPU": 1.0},)


def test_placement_without_gpus_asks_for_none() -> None:
    for settings in (ClusterConfig(engines=2), ClusterConfig(engines=1, learners=2)):
        plan = plan_placement(settings, gpus_per_engine=0)
        assert plan.bundles == ({"CPU": 1.0},) * 2
        assert not any(slot.gpus for slot in (*plan.engines, *plan.learners))


def test_count_placeable_places_large_bundles_first() -> None:
    nodes = [{"CPU": 2.0, "GPU": 1.0}, {"CPU": 2.0}]
    small, large = {"CPU": 1.0}, {"CPU": 1.0, "GPU": 1.0}
    assert count_placeable([small, small, small, large], nodes) == 4
    assert count_placeable([large, large], nodes) == 1
    assert count_placeable([{"CPU": 3.0}], nodes) == 0  # a bundle is not split over nodes


def test_capacity_error_names_needs_and_nodes() -> None:
    settings = ClusterConfig(engines=2, learners=2, placement="disaggregated")
    plan = plan_placement(settings, gpus_per_engine=1)
    nodes = {"10.0.0.1:6379": {"CPU": 8.0, "GPU": 2.0}, "10.0.0.2:6379": {"CPU": 8.0}}
    with pytest.raises(UserError) as error:
        check_capacity(settings, plan, nodes)
    assert str(error.value) == (
        "cluster.engines 2 and cluster.learners 2 need 4 x (1 CPU, 1 GPU), and there is room for 2: 10.0.0.1:6379 has "
        "8 CPU, 2 GPU; 10.0.0.2:6379 has 8 CPU, 0 GPU. Lower them, set cluster.placement colocated or add machines."
    )
    settings = settings.model_copy(update={"env_workers": 20})
    with pytest.raises(
        UserError, match=r"and cluster\.env_workers 20 need 4 x \(1 CPU, 1 GPU\) and 20 x \(1 CPU, 0 GPU"
    ):
        check_capacity(settings, plan_placement(settings, gpus_per_engine=1), nodes)
    settings = settings.model_copy(update={"env_workers": 0})
    check_capacity(
        settings.model_copy(update={"placement": "colocated"}),
        plan_placement(settings.model_copy(update={"placement": "colocated"}), gpus_per_engine=1),
        nodes,
    )
