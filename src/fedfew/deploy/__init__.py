"""A network of real machines: certificates, bundles, Flower's processes, warm sites, and the checks before a start."""
