"""The engine in process: a slot of KV cache a session, continuous batching, the learner's own parameters."""
