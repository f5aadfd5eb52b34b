"""The nouns and the protocols. Imports nothing of turnwise."""
