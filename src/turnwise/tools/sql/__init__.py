"""SQLite queries as a tool: read-only, with limits on time, rows and memory."""
