"""Tools that an agent calls: Python functions, Python code, SQL, search and MCP servers."""
