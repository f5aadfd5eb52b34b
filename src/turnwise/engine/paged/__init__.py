"""The engine's runner for GPUs: paged KV cache, decoding captured in CUDA graphs, a torch reference for the CPU."""
