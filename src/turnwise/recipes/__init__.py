"""Presets and wiring: configure, validate, build, run. The only package that names concrete algorithms and engines."""
