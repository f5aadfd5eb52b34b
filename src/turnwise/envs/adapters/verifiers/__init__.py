"""Environments of the verifiers package, of both of its generations."""
