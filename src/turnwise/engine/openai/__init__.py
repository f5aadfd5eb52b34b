"""Any OpenAI-compatible chat endpoint: messages in, messages out, nothing to train on."""
