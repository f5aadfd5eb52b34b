"""Isolated Python sessions on Linux, without Docker or root. `host.Sandbox` is the entry point."""
