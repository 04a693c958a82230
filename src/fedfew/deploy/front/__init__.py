"""The TLS front: the only port of a network that is open to the outside."""
