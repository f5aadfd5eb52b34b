"""Answer questions about generated databases with SQL queries."""
