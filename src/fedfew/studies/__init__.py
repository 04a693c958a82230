"""Many runs: sweeps, comparisons, bounds, verdicts and learning curves."""
