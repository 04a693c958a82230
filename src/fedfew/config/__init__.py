"""The config: its schema, presets, names and checks between settings."""
