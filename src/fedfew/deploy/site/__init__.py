"""A site of a network: its images, its terms, and the process that trains."""
