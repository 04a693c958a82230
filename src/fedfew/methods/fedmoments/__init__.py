"""fedmoments and its parts: the survey, EM on sums, the correction by labels, trust and plausibility."""
