"""Tasks of agents that are trained through the gateway."""
