"""Client for OpenAI-compatible chat endpoints."""
