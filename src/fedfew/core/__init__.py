"""The vocabulary every layer speaks: types, protocols, vector layout, random streams, settings and errors."""
