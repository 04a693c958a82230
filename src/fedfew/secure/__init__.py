"""Secure sums: the server learns the sum over the sites and nothing else about a single one.

site.py, exchange.py   the protocol (K. Bonawitz et al., CCS 2017): a site's five steps, and the server's round
shamir.py              secret sharing                terms.py     what all sites of a sum must agree on
identity.py            who a site is to the others   content.py   a reply as words: weights, clipping, noise
messages.py            the steps as tensors          client.py    a site in a run
"""
