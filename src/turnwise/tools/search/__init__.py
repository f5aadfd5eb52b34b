"""Retrieval over a corpus of one's own: passages, a lexical and a dense index, a tool, a server."""
