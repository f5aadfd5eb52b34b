"""The only place that names concrete things: presets, the wiring, and the checks before anything starts."""
