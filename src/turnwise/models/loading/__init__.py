"""Load and save models, tokenizers and LoRA adapters."""
