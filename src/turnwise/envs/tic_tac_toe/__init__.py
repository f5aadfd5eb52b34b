"""Three in a row, against a scripted opponent."""
