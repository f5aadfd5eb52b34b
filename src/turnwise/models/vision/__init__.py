"""Images in models: transformers' processors, features by content hash, and their embedding among text tokens."""
