"""What `fedfew deploy` says: the next commands, configurations for nginx and systemd, and the doctor's findings."""
