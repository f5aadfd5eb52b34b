"""Find the thing by questions with yes or no for an answer."""
