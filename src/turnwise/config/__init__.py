"""The tree of all settings, of sections beside the code that they configure; TOML files and overrides."""
