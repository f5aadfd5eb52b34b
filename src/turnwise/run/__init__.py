"""From a configuration to a run: configure, check, build, run. The Python API."""
