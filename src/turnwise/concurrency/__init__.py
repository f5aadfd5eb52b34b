"""Event loops, threads, time limits and caches that threads share."""
