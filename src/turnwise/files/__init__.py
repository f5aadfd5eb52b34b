"""Files: atomic writes, locks, and tables of rows."""
