"""Policies that generate.

`engines.py` lists them: `native/`, which shares the learner's weights and whose KV cache on a GPU is
`paged/`, and `vllm/`. `openai/` is a client of chat endpoints, for evaluation and judges; `scripted.py` is for tests.
"""
