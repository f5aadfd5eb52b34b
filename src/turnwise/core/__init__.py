"""Types and protocols. Imports nothing else from turnwise."""
