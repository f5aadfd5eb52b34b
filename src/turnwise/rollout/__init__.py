"""Episodes, groups, the context that a model sees, the tasks that are drawn, and how many run at once."""
