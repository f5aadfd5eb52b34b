"""What a search may ask for, at the tool and at the server alike."""

LONGEST_QUERY = 2000
"""Characters."""
MOST_HITS = 50
"""Of one query."""
MOST_QUERIES = 1024
"""Of one request."""
MOST_REQUEST_BYTES = 4 << 20
MOST_REPLY_BYTES = 256 << 20
"""More than any reply of so many hits has with passages of the usual length."""
KEY_VARIABLE = "TURNWISE_SEARCH_KEY"
