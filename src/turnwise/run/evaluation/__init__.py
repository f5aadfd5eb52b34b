"""`turnwise eval`: plan, models, episodes, results."""
