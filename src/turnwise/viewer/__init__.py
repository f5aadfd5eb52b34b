"""Web viewer over run folders. Reads files only."""
