"""A small shop: search, look, choose, buy."""
