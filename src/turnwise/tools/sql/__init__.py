"""SQLite queries as a tool: read-only, within limits of time, rows and memory."""
