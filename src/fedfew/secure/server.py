"""The server's part in a secure sum: it removes the masks of the sum, not of any summand."""

from collections.abc import Mapping

import numpy as np

from fedfew.core.errors import FedfewError
from fedfew.secure.fixed_point import Words
from fedfew.secure.shamir import join, weights
from fedfew.secure.site import Advert, committed, key_stream, pair_mask, public_key


def unmask(
    context: bytes,
    threshold: int,
    adverts: Mapping[int, Advert],
    sharing: frozenset[int],
    arrived: Mapping[int, Words],
    revealed: Mapping[int, Mapping[int, bytes]],
) -> Words:
    """Σ of the values of the sites that arrived, from shares that at least ``threshold`` of them have revealed.

    A site that dropped out after sharing its keys (in ``sharing``, not in ``arrived``) left the masks that it has in
    common with others in the sum: its mask key is put together and they are subtracted. E423 if that is not possible.
    """
    count = len(next(iter(arrived.values())))
    total = np.zeros(count, np.uint64)
    for values in arrived.values():
        total += values
    for site in sorted(sharing):
        secret = _secret(site, threshold, revealed)
        if site in arrived:
            if committed(secret) != adverts[site].seed:
                raise FedfewError("E423", f"site {site}", "the shares of its seed do not fit together")
            total -= key_stream(secret, count)
            continue
        if public_key(secret) != adverts[site].mask:
            raise FedfewError("E423", f"site {site}", "the shares of its key do not fit together")
        for other in arrived:
            mask = pair_mask(secret, adverts[other].mask, context, count)
            total = total - mask if other < site else total + mask
    return total


def _secret(site: int, threshold: int, revealed: Mapping[int, Mapping[int, bytes]]) -> bytes:
    """The seed or the key of a site, from the shares of its holders."""
    shares = {holder: int.from_bytes(parts[site]) for holder, parts in revealed.items() if site in parts}
    if len(shares) < threshold:
        raise FedfewError("E423", f"site {site}", f"{len(shares)} shares are left, {threshold} are needed")
    secret = join(shares, weights(sorted(shares)[:threshold]))
    if secret >= 2**256:
        raise FedfewError("E423", f"site {site}", "its shares do not fit together")
    return secret.to_bytes(32)
