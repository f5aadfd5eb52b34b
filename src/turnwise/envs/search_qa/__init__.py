"""Questions that a corpus of made-up people, towns, companies and books answers, one passage or several away."""
