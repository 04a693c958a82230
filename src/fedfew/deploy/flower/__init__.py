"""The path of a message through Flower: frames, records, apps, the fleet, the warm site."""
