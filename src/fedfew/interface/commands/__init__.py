"""The commands of the command line, grouped in modules that are imported when one of their commands is used."""
