"""Model-written Python, jailed: a zygote forks a session in milliseconds, and a session keeps its variables."""
