"""The study of a paper, made with fedfew: its figures, claims and report. ``python -m paper --help`` says how."""
