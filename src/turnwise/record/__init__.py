"""The run folder: metrics, trajectories and their index, evaluations, provenance, trackers."""
