"""Secure sums: the server learns the sum over the sites and nothing else about a single one.

site.py, server.py   the protocol (K. Bonawitz et al., CCS 2017): what a site and the server compute in its five steps
shamir.py            secret sharing                      fixed_point.py   real numbers modulo 2⁶⁴
identity.py          who a site is to the others         terms.py         what all sites of a sum must agree on
messages.py          the steps as tensors                content.py       a reply as words: weights, clipping, noise
client.py            a site in a run                     exchange.py      the server's round
"""
