"""Questions about generated databases, answered with queries."""
