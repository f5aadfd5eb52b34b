"""OpenAI- and Anthropic-compatible server that records an existing agent's calls as exact-token trajectories."""
