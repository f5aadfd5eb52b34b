"""Sockets of servers."""
