"""vLLM as the engine: in process or as servers, token ids in and out."""
