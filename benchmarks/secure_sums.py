"""What secure sums cost: CPU seconds and bytes of a round against an open round, and of rounds that sites leave.

    OMP_NUM_THREADS=1 python -m benchmarks.secure_sums [--numbers 12750] [--rounds 3]

One process plays the server and all sites with their own code, so its CPU time is that of all together. Training takes
no time: every site answers with a vector that was drawn before. 12,750 numbers are 51 kB as float32. In the open round
the server checks every vector at the gate and takes the mean. Keys are those of a network, signed by its authority;
checking these signatures, once in the life of a site's process, is not in the seconds. Three in ten sites leave before
one of the five exchanges; of five sites one, because four must stay.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from time import process_time
from typing import Any

import torch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from torch import Tensor

from fedfew.aggregators.weighted import weighted_mean
from fedfew.core.layout import Expected, Payload
from fedfew.core.types import ClientUpdate, Contribution, Fleet, Missing, Trained
from fedfew.deploy.certificates import authority
from fedfew.deploy.roster import signed_member
from fedfew.runtime.gate import Gate
from fedfew.secure import messages
from fedfew.secure.client import SumClient
from fedfew.secure.content import Codec
from fedfew.secure.exchange import Carrier, Sum
from fedfew.secure.identity import Identity
from fedfew.secure.terms import Rules, Terms

RULES = Rules("benchmark", 3, 2 / 3, 0.5, 16.0, 1_000_000, by_images=True, only_active=False, uneven=False)
GONE = 0.3
"""Share of the sites that leaves before an exchange."""
EXCHANGES = (1, 2, 3, 4, 5)
IMAGES = 100


@cache
def network(sites: int) -> Identity:
    """The sites of a network, whose authority has signed their keys."""
    ca = authority("benchmark", 1)
    signer = serialization.load_pem_private_key(ca.private, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    keys = {k: ec.generate_private_key(ec.SECP256R1()) for k in range(sites)}
    points = {k: key.public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint) for k, key in keys.items()}
    members = {k: signed_member(signer, "", k, point) for k, point in points.items()}
    return Identity(keys.get, authority=ca.public).meet(members)


class SecureSites(Fleet):
    """A fleet of sites that have trained already; some leave before an exchange, 0: none."""

    def __init__(self, vectors: Tensor, leave: int) -> None:
        self.vectors, self.leave = vectors, leave
        self.client = SumClient(RULES, network(len(vectors)), {"psi": Expected((vectors.shape[1],), near="omega")})
        self.kept: list[dict[str, Tensor]] = [{} for _ in vectors]

    def train(self, round: int, payloads: Mapping[int, Payload]) -> Iterator[ClientUpdate | Missing]:
        for k, payload in payloads.items():
            left = self.leave and int(payload[messages.STEP]) >= self.leave and k < int(GONE * len(self.vectors))
            if not left:
                answer = self.client.answer(round, k, payload, self.kept[k], partial(self._trained, k))
                yield ClientUpdate(k, answer, 0)

    def _trained(self, k: int, payload: Payload) -> tuple[Trained, int]:
        return Trained({"psi": self.vectors[k]}), IMAGES


class OpenSites(Fleet):
    """The same sites, which send their vectors as they are."""

    def __init__(self, vectors: Tensor) -> None:
        self.vectors = vectors

    def train(self, round: int, payloads: Mapping[int, Payload]) -> Iterator[ClientUpdate | Missing]:
        for k in payloads:
            yield ClientUpdate(k, {"psi": self.vectors[k]}, IMAGES)


def secure_round(vectors: Tensor, leave: int = 0) -> dict[str, Any]:
    """One sum: CPU seconds of server and sites together, and bytes of tensors."""
    sites, payload = SecureSites(vectors, leave), {"omega": torch.zeros(vectors.shape[1])}
    begin = process_time()
    post = Carrier(sites, 0)
    codec = Codec(RULES, sites.client.schema, len(vectors))
    identity = network(len(vectors))
    terms = Terms.of(0, dict.fromkeys(range(len(vectors)), 1.0), payload, identity.members)
    words, arrived = Sum(post, codec, terms, identity, payload).collect(range(len(vectors)))
    mean = codec.decode(words, payload)[0]["psi"]
    seconds = process_time() - begin
    assert torch.allclose(mean, vectors[list(arrived)].mean(0), atol=1e-6)
    return {"cpu_seconds": seconds, "bytes": post.up + post.down, "in_the_sum": len(arrived)}


def open_round(vectors: Tensor) -> dict[str, Any]:
    """One exchange, the gate, and the mean."""
    payload, schema = {"omega": torch.zeros(vectors.shape[1])}, {"psi": Expected((vectors.shape[1],), near="omega")}
    begin = process_time()
    post = Carrier(OpenSites(vectors), 0)
    replies = post.exchange(dict.fromkeys(range(len(vectors)), payload))
    updates = [ClientUpdate(k, reply, IMAGES) for k, reply in replies.items()]
    passed = [u for u in updates if Gate().check(u, payload, schema) is None]
    parts = [Contribution(u.client, u.reply["psi"], u.examples, 1) for u in passed]
    mean = weighted_mean(parts, [1 / len(parts)] * len(parts)).vector
    seconds = process_time() - begin
    assert torch.allclose(mean, vectors.mean(0), atol=1e-6)
    return {"cpu_seconds": seconds, "bytes": post.up + post.down, "in_the_sum": len(parts)}


def measure(sites: int, numbers: int, rounds: int) -> dict[str, dict[str, Any]]:
    """Each kind of round after one to warm up: mean seconds, and bytes as a multiple of the open round's."""
    vectors = torch.randn(sites, numbers, generator=torch.Generator().manual_seed(sites))
    kinds: dict[str, Callable[[], dict[str, Any]]] = {
        "open": partial(open_round, vectors),
        "secure": partial(secure_round, vectors),
    }
    kinds |= {f"30 % leave before exchange {e}": partial(secure_round, vectors, e) for e in EXCHANGES}
    made = {name: _mean([play() for _ in range(rounds + 1)][1:]) for name, play in kinds.items()}
    for row in made.values():
        row["times_open_bytes"] = round(row["bytes"] / made["open"]["bytes"], 2)
    return made


def _mean(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return runs[0] | {"cpu_seconds": round(sum(run["cpu_seconds"] for run in runs) / len(runs), 4)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--numbers", type=int, default=12_750)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for count in (5, 30, 100):
        for kind, row in measure(count, arguments.numbers, arguments.rounds).items():
            print(json.dumps({"sites": count, "round": kind} | row), flush=True)
