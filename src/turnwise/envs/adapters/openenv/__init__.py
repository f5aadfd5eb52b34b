"""Environments of OpenEnv servers, over their WebSocket."""
