"""Many runs: sweeps, comparisons, the paper's figures and claims."""
