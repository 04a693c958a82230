"""Output of `fedfew deploy`: the next commands, configurations for nginx and systemd, and the doctor's findings."""
