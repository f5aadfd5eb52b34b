"""Serve environments of turnwise over OpenEnv's protocol."""
