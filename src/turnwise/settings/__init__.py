"""Sections of settings, and settings that choose one of several alternatives."""
