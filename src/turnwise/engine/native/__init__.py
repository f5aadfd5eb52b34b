"""In-process engine: one KV cache slot per session, continuous batching, the learner's own parameters."""
