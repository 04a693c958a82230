"""Rounds of m clients with a model of a given size, without training: ``python -m tests.runtime.peak_memory m d rule``.

Prints the peak of the process's own memory over two rounds, in bytes beyond what it had before them. Pages of mapped
files do not count: the system drops them when it needs memory.
"""

import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from threading import Event, Thread

import torch
from torch import nn

from fedfew.aggregators import AGGREGATORS
from fedfew.core.layout import Payload, Vector
from fedfew.core.network import Network
from fedfew.core.samples import LabeledSet
from fedfew.core.streams import stream
from fedfew.core.types import ClientUpdate, Fleet, Scores, Scoring, ServerSite
from fedfew.data.samples import Images
from fedfew.methods.fedmix import FedMix
from fedfew.runtime.exchange import Clients
from fedfew.runtime.rounds import run_rounds
from fedfew.training.sgd import LocalSGD
from fedfew.training.supervised import Supervised


class NudgingFleet(Fleet):
    """Clients that answer ω and a little noise: the round is real, and nothing is learned."""

    def train(self, round: int, payloads: Mapping[int, Payload]) -> Iterator[ClientUpdate]:
        for k, payload in payloads.items():
            noise = torch.randn(len(payload["omega"]), generator=stream(0, "noise", round, k))
            yield ClientUpdate(k, {"psi": payload["omega"] + 1e-3 * noise}, 1, {"steps": 1.0})

    def score(self, omega: Vector, clients: Vector | None = None) -> Scoring:
        return lambda: Scores(0.5, 1.0, None)


def own_memory() -> int:
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024


def growth(m: int, size: int, rule: str) -> int:
    torch.set_num_threads(1)
    network = Network.of(nn.Sequential(nn.Flatten(), nn.Linear(64, size // 65)))
    site = ServerSite(network, LabeledSet(Images(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)), torch.tensor([0, 1])), 2)
    method = FedMix(Supervised(), LocalSGD(), partial(AGGREGATORS[rule]))
    state = method.start(network.snapshot())
    for _ in run_rounds(Clients(0, 3, 3), method, site, NudgingFleet(), state, 1):
        pass  # what any round needs, whatever its size, is there from here on
    before, seen, done = own_memory(), [0], Event()

    def look() -> None:
        while not done.wait(0.002):
            seen[0] = max(seen[0], own_memory())

    looking = Thread(target=look)
    looking.start()
    for _ in run_rounds(Clients(0, m, m), method, site, NudgingFleet(), state, 2):
        pass
    done.set()
    looking.join()
    return seen[0] - before


if __name__ == "__main__":
    print(growth(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
