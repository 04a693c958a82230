"""Where the layers meet: config, building a run from it, the run folder, resuming."""
