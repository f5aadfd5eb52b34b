"""Ray: engine replicas and learner ranks in processes of their own, their placement, weights and recovery."""
