"""A run and its folder: journal, checkpoints, sessions, repair, summary."""
