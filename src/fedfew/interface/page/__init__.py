"""The live page: the runs below a folder in a browser as they advance; it only reads, nothing leaves the machine."""
