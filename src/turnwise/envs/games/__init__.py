"""Two-player games: rules, an environment against a scripted opponent, and self-play."""
