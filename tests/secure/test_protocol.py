"""The five steps of a sum: exact under drop-outs, and refused by sites where a server lies."""

import secrets
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from fedfew.core.errors import FedfewError
from fedfew.secure import site as steps
from fedfew.secure.content import decoded, encoded, finest
from fedfew.secure.exchange import unmask
from fedfew.secure.identity import simulated
from fedfew.secure.shamir import PRIME, evaluate, join, split, weights
from fedfew.secure.site import Advert, Secrets
from fedfew.transforms.discrete_gaussian import Words

IDENTITY = simulated(7)
CONTEXT = b"terms of one sum".ljust(32)


class Sum:
    """An honest server and honest sites; a test may leave this path at any step."""

    def __init__(self, sites: int, threshold: int, length: int = 20) -> None:
        self.threshold, self.all = threshold, range(sites)
        self.values: dict[int, Words] = {
            i: np.random.default_rng(i).integers(0, 2**63, length, dtype=np.uint64) for i in self.all
        }
        self.own: dict[int, Secrets] = {}
        self.adverts: dict[int, Advert] = {}
        self.sent: dict[int, dict[int, bytes]] = {}
        self.arrived: dict[int, Words] = {}
        self.signatures: dict[int, bytes] = {}
        self.revealed: dict[int, Mapping[int, bytes]] = {}

    def run(self, until: int = 5, gone: Mapping[int, set[int]] | None = None) -> "Sum":
        """Steps 1 to ``until``; ``gone``: the sites that leave before a step."""
        out: set[int] = set()
        for step in range(1, until + 1):
            out |= (gone or {}).get(step, set())
            for i in (i for i in self.all if i not in out):
                self.step(step, i)
        return self

    def step(self, step: int, i: int) -> None:
        if step == 1:
            self.own[i] = Secrets.new(i, CONTEXT, self.threshold, self.all)
            self.adverts[i] = steps.advertise(self.own[i], IDENTITY)
        elif step == 2:
            self.sent[i] = steps.share(self.own[i], self.adverts, IDENTITY)
            self.own[i] = replace(self.own[i], adverts=dict(self.adverts))
        elif step == 3:
            self.mask(i, self.envelopes(i))
        elif step == 4:
            self.agree(i, self.arrived)
        else:
            self.revealed[i] = steps.reveal(self.own[i], self.signatures, IDENTITY)

    def mask(self, i: int, envelopes: Mapping[int, bytes]) -> None:
        self.arrived[i] = steps.masked(self.own[i], envelopes, self.values[i])
        self.own[i] = replace(self.own[i], envelopes=dict(envelopes))

    def agree(self, i: int, arrived: Collection[int]) -> bytes:
        """One site signs a list."""
        self.signatures[i] = steps.agree(self.own[i], arrived, IDENTITY)
        self.own[i] = replace(self.own[i], signed=tuple(sorted(arrived)))
        return self.signatures[i]

    def envelopes(self, i: int) -> dict[int, bytes]:
        return {sender: envelopes[i] for sender, envelopes in self.sent.items()}

    def total(self) -> Words:
        return unmask(CONTEXT, self.threshold, self.adverts, frozenset(self.sent), self.arrived, self.revealed)


@pytest.mark.parametrize(
    "gone", [{}, {1: {0}}, {2: {1}}, {3: {2, 4}}, {4: {0, 3}}, {5: {1}}, {2: {5}, 3: {6}, 4: {0}, 5: {8}}]
)
def test_the_sum_is_exact_whoever_drops_out(gone: dict[int, set[int]]) -> None:
    made = Sum(9, 5).run(gone=gone)
    expected = np.zeros(20, np.uint64)
    for i in made.arrived:
        expected = expected + made.values[i]
    assert (made.total() == expected).all()


def test_masked_values_are_uniform_and_say_nothing_alone() -> None:
    zero = Sum(5, 3, 4000)
    zero.values = {i: np.zeros(4000, np.uint64) for i in zero.all}
    words = zero.run(3).arrived[2]
    high = (words >> np.uint64(60)).astype(np.int64)  # 16 equally likely values
    counts = np.bincount(high, minlength=16)
    assert ((counts - 250) ** 2 / 250).sum() < 52.6  # χ² with 15 degrees of freedom: exceeded once in 200,000 runs


def refused(text: str) -> "pytest.RaisesExc[FedfewError]":
    return pytest.raises(FedfewError, match=f"E422.*{text}")


def test_too_few_sites_are_refused_in_every_step() -> None:
    made = Sum(9, 5).run(1)
    few = {i: made.adverts[i] for i in range(4)}
    with refused("4 sites take part; 5 must"):
        steps.share(made.own[0], few, IDENTITY)
    made.run(2)
    with refused("4 sites take part; 5 must"):
        steps.masked(made.own[0], dict(list(made.envelopes(0).items())[:4]), made.values[0])
    for i in made.all:
        made.step(3, i)
    with refused("4 sites take part; 5 must"):
        steps.agree(made.own[0], [0, 1, 2, 3], IDENTITY)
    for i in made.all:
        made.step(4, i)
    with refused("4 sites take part; 5 must"):
        steps.reveal(made.own[0], {i: made.signatures[i] for i in range(4)}, IDENTITY)


def _advert(site: int, context: bytes, sites: Collection[int]) -> Advert:
    return steps.advertise(Secrets.new(site, context, 3, sites), IDENTITY)


def test_keys_that_a_site_has_not_signed_for_this_sum_are_refused() -> None:
    made = Sum(5, 3).run(1)
    ours, other = made.adverts[1], _advert(1, b"another sum".ljust(32), made.all)
    forged = other._replace(signature=ours.signature)
    for wrong in (ours._replace(mask=made.adverts[2].seal[::-1]), other, forged):
        with refused("keys of site 1 are not signed"):
            steps.share(made.own[0], made.adverts | {1: wrong}, IDENTITY)
    with refused("another key is given in this site's name"):
        steps.share(made.own[0], made.adverts | {0: ours}, IDENTITY)
    with refused("two sites have the same key"):
        steps.share(made.own[0], made.adverts | {2: ours}, IDENTITY)
    stranger = _advert(9, CONTEXT, [*made.all, 9])
    with refused("the terms do not name"):
        steps.share(made.own[0], made.adverts | {9: stranger}, IDENTITY)


def test_a_site_reveals_nothing_for_two_lists() -> None:
    """Sites 0 to 3 are told that 8 has dropped out, the others that it arrived: no list gets five signatures."""
    made = Sum(9, 5).run(3)
    short, whole = set(range(8)), set(range(9))
    told = {i: (short if i < 4 else whole) for i in range(8)}
    signatures = {}
    for i, arrived in told.items():
        signatures[i] = made.agree(i, arrived)
    with refused("has not signed this list"):
        steps.reveal(made.own[0], signatures, IDENTITY)
    with refused("4 sites take part; 5 must"):
        steps.reveal(made.own[0], {i: signatures[i] for i in range(4)}, IDENTITY)
    with refused("asked for again"):
        steps.agree(made.own[0], whole, IDENTITY)


def test_signatures_do_not_serve_when_the_same_terms_are_offered_again() -> None:
    """A server would collect lists: with two friends it could then open the sum of two honest sites of nine."""
    signed, again = Sum(9, 6).run(4), Sum(9, 6).run(3)
    again.agree(0, again.all)
    with refused("has not signed this list"):
        steps.reveal(again.own[0], signed.signatures, IDENTITY)


def test_the_two_kinds_of_shares_are_never_given_for_one_site() -> None:
    made = Sum(9, 5).run(gone={3: {2}})
    for parts in made.revealed.values():
        assert set(parts) == set(made.all)  # one share each: of the key for site 2, of the seed for the others
    with pytest.raises(FedfewError, match=r"E423.*do not fit together"):
        made.arrived[2] = made.arrived[1]  # as if it had arrived: what was revealed is not its seed
        made.total()


def test_an_envelope_that_was_changed_or_is_from_another_sum_opens_nothing() -> None:
    made = Sum(5, 3).run(2)
    damaged = made.envelopes(0) | {1: bytes(steps.ENVELOPE)}
    made.mask(0, damaged)
    for i in range(1, 5):
        made.step(3, i)
    for step in (4, 5):
        for i in made.all:
            made.step(step, i)
    assert 1 not in made.revealed[0]
    assert (made.total() == sum(made.values.values(), np.zeros(20, np.uint64))).all()  # three of the four others do


def test_a_site_that_reveals_wrong_shares_is_passed_over_and_several_are_noticed() -> None:
    made = Sum(5, 3).run()
    total = made.total()
    made.revealed[0] = {site: bytes(66) for site in made.all}
    assert (made.total() == total).all()
    made.revealed[2] = {site: bytes(65) + b"\x01" for site in made.all}
    with pytest.raises(FedfewError, match=r"E423 site 0: its shares do not fit together"):
        made.total()
    made.revealed = {i: made.revealed[i] for i in range(2)}
    with pytest.raises(FedfewError, match="2 shares are left, 3 are needed"):
        made.total()


def test_a_curious_server_with_t_minus_1_sites_is_left_with_the_sum_of_the_others() -> None:
    """Five of nine sites tell it all they have: of the other four it knows the sum, and of some of them nothing."""
    made, friends, others = Sum(9, 6, 4000), range(5), range(5, 9)
    made.values = {i: np.zeros(4000, np.uint64) for i in made.all}
    made.run()
    left = {}
    for i in others:  # take off all that server and friends can compute: what was revealed, and the masks with friends
        left[i] = made.arrived[i] - steps.key_stream(made.own[i].seed, 4000)
        for j in friends:
            mask = steps.pair_mask(made.own[j].mask, made.adverts[i].mask, CONTEXT, 4000)
            left[i] = left[i] + mask if j < i else left[i] - mask
    assert not sum(left.values(), np.zeros(4000, np.uint64)).any()
    for some in ([5], [6], [5, 8], [5, 6, 7]):
        words = sum((left[i] for i in some), np.zeros(4000, np.uint64))
        counts = np.bincount((words >> np.uint64(60)).astype(np.int64), minlength=16)
        assert ((counts - 250) ** 2 / 250).sum() < 52.6  # uniform, as above


@pytest.mark.parametrize(("friends", "works"), [(2, False), (3, True)])
def test_two_lists_need_as_many_friends_among_the_sites_as_the_assumption_excludes(friends: int, works: bool) -> None:
    """Of nine sites with t = 6, fewer than 2t − n = 3 may collude: with three, two lists get six signatures each."""
    made = Sum(9, 6).run(3)
    lists = set(range(9)), set(range(8))  # the last site has arrived, and it has dropped out
    honest, signatures = range(friends, 8), [dict[int, bytes](), dict[int, bytes]()]
    for i in honest:
        which = i % 2
        signatures[which][i] = made.agree(i, lists[which])
    for which, signed in enumerate(signatures):  # friends sign anything
        message = steps.listed(CONTEXT, made.adverts, lists[which])
        signed |= {i: IDENTITY.sign(i, message) for i in range(friends)}
    if works:
        signatures[0][8] = made.agree(8, lists[0])
        for which, signed in enumerate(signatures):
            site = next(i for i in honest if i % 2 == which)
            assert 8 in steps.reveal(made.own[site], signed, IDENTITY)
        return
    both = [len(signed) >= 6 for signed in signatures]
    assert not all(both)
    which = both.index(False)
    with refused("5 sites take part; 6 must"):
        steps.reveal(made.own[next(i for i in honest if i % 2 == which)], signatures[which], IDENTITY)


def test_fixed_point_sums_are_exact_to_half_a_step_a_site_and_cannot_overflow() -> None:
    rng, sites, bound = np.random.default_rng(0), 1000, 3.0
    step = finest(bound, sites)
    assert bound * sites / step <= 2**62 < 2 * bound * sites / step
    values = rng.uniform(-bound, bound, (sites, 50))
    values[:, 0], values[:, 1] = bound, -2 * bound  # the largest sum; and what lies outside is cut
    words = np.zeros(50, np.uint64)
    for row in values:
        words = words + encoded(row, step, bound)
    total = np.clip(values, -bound, bound).sum(0)
    assert np.abs(decoded(words, step) - total).max() <= sites * step / 2 + 1e-9
    with pytest.raises(ArithmeticError):
        encoded(np.array([np.nan]), step, bound)


def test_the_published_example() -> None:
    # Wikipedia, "Shamir's secret sharing", Python example's numbers: 1234 + 166 x + 94 x² modulo 1613
    shares = {i: evaluate([1234, 166, 94], i + 1, 1613) for i in range(6)}
    assert list(shares.values()) == [1494, 329, 965, 176, 1188, 775]
    for three in combinations(range(6), 3):
        assert join(shares, weights(three, 1613), 1613) == 1234


def test_a_threshold_of_shares_is_enough_and_one_fewer_is_not() -> None:
    secret = secrets.randbelow(2**256)
    shares = split(secret, 4, [0, 2, 3, 7, 11, 40])
    for four in combinations(shares, 4):
        assert join(shares, weights(four)) == secret
    for three in combinations(shares, 3):
        assert join(shares, weights(three)) != secret


def test_three_shares_of_a_threshold_of_four_fit_every_secret() -> None:
    shares, held = split(5, 4, [0, 1, 2, 3]), (0, 1, 2)
    for other in (5, 6, 2**200):
        missing = (other - sum(weights(range(4))[i] * shares[i] for i in held)) * pow(weights(range(4))[3], -1, PRIME)
        assert join(shares | {3: missing % PRIME}, weights(range(4))) == other


@pytest.mark.parametrize(("secret", "threshold", "holders"), [(-1, 2, [0, 1]), (PRIME, 2, [0, 1]), (1, 3, [0, 1]),
                                                               (1, 2, [0, 0]), (1, 0, [0])])  # fmt: skip
def test_impossible_requests_are_refused(secret: int, threshold: int, holders: list[int]) -> None:
    with pytest.raises(ValueError, match="secret of the field"):
        split(secret, threshold, holders)
