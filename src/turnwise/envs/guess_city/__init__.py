"""Find the city by questions of any kind."""
