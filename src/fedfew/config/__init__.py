"""The config: its schema, presets, names and what does not go together."""
