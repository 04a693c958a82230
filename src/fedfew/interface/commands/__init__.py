"""The commands of the command line, one module for those that belong together; imported when one of them is used."""
