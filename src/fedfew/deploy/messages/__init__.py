"""Messages between server and sites: from tensors to Flower's records and back."""
