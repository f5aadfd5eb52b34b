"""The command line: parse arguments, call `run/`, print."""
