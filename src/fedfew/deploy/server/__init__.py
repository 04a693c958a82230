"""The server of a network: Flower's processes, the fleet of sites, the run."""
