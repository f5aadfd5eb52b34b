"""Runner of the native engine on a CPU: slots of a KV cache, attention and sampling with C kernels."""
