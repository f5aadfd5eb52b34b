"""Connect four against a scripted opponent."""
