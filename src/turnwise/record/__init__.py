"""The run folder: metrics, trajectories and their index, and what a person sees of a run."""
