"""Servers that others program against."""
