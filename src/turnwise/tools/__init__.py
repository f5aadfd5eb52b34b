"""Tools that an agent calls: the python sandbox."""
