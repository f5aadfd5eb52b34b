"""Engines that generate: native (in process, shares the learner's weights), paged (on a GPU), openai, scripted."""
