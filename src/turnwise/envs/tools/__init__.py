"""Questions from a file, tools, and a reward function: all that a person writes."""
