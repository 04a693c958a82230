"""The one round loop and what it runs on: client sites, fleets and the gate."""
