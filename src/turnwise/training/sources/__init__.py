"""Sources of the episodes of a step."""
