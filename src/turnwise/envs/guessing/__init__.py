"""Question games: the agent asks about a hidden word and guesses it; every turn costs."""
