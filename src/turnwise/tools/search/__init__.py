"""Search over a corpus of documents: passages, lexical and dense retrieval, a tool and a server."""
