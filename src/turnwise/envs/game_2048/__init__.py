"""Slide and merge tiles up to a chosen one."""
