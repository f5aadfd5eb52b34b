"""Load and save: hub name, local folder, GGUF, tiny's architecture and tokenizer; value head."""
