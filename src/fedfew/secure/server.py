"""The server's part in a secure sum: it removes the masks of the sum, not of any summand."""

from collections.abc import Callable, Mapping

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
        if site in arrived:
            seed = _secret(site, threshold, revealed, committed, adverts[site].seed)
            total -= key_stream(seed, count)
            continue
        key = _secret(site, threshold, revealed, public_key, adverts[site].mask)
        for other in arrived:
            mask = pair_mask(key, adverts[other].mask, context, count)
            total = total - mask if other < site else total + mask
    return total


def _secret(
    site: int, threshold: int, revealed: Mapping[int, Mapping[int, bytes]], told: Callable[[bytes], bytes], known: bytes
) -> bytes:
    """The secret of a site of which ``told(secret)`` is known; wrong shares are passed over while others are left."""
    shares = {holder: int.from_bytes(parts[site]) for holder, parts in revealed.items() if site in parts}
    if len(shares) < threshold:
        raise FedfewError("E423", f"site {site}", f"{len(shares)} shares are left, {threshold} are needed")
    holders = sorted(shares)
    for first in range(len(holders)):
        secret = join(shares, weights(tuple((holders * 2)[first : first + threshold])))
        if secret < 2**256 and told(secret.to_bytes(32)) == known:
            return secret.to_bytes(32)
    raise FedfewError("E423", f"site {site}", "its shares do not fit together")
