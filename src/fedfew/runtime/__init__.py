"""The round loop and what it uses: client sites, fleets and the gate."""
