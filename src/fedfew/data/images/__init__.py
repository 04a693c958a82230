"""Image files: reading, decoding, checking and caching them."""
