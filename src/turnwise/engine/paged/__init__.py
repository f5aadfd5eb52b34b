"""The engine on a GPU: a paged cache, and decoding captured as one graph; every part has a twin for the CPU."""
