"""Accuracy of fedmoments with noise that hides single images: ``python -m benchmarks.image_noise FEATURES.npz``.

The file holds features of a frozen backbone: train, train_labels, test, test_labels, classes, and the backbone's own
``classifier`` (classes × features) if it has one. Labels and sites are drawn anew with each seed; every answer passes
the transforms of a run. Labels alone, and fedmoments without bound, stand beside.
"""

import argparse
from dataclasses import replace
from statistics import mean

import numpy as np
import torch

from fedfew.aggregators import AGGREGATORS
from fedfew.core.network import Network
from fedfew.core.samples import LabeledSet
from fedfew.core.types import ClientSite, ClientUpdate, ServerSite, ServerState
from fedfew.data.dataset import Dataset
from fedfew.data.federation import Split, federate
from fedfew.data.samples import Vectors
from fedfew.methods.fedmoments.method import FEDMOMENTS, NARROW, NOISY, FedMoments
from fedfew.models.layers import Head
from fedfew.runtime.rounds import count, server_turn
from fedfew.runtime.wire import Wire
from fedfew.training.sgd import LocalSGD
from fedfew.training.supervised import Supervised
from fedfew.transforms.epsilon import epsilon
from fedfew.transforms.privacy import Private

EPSILONS, DELTA, ROUNDS = (8.0, 3.0, 1.0), 1e-5, 16
IMAGES = 11_000
"""Unlabeled images at all sites together."""


def noise_for(budget: float, answers: int) -> float:
    """The smallest z, to a thousandth, whose ε over so many answers is within the budget."""
    low, high = 0.01, 1000.0
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if epsilon({2 * middle: answers}, DELTA) > budget else (low, middle)
    return high


def trained(method: FedMoments, parts: list[Vectors], site: ServerSite) -> tuple[ServerState, ServerState]:
    """The states of the labels alone and at the end; all sites answer in every round."""
    noise = method.image_noise
    wire = Wire(method, [*([Private(0.0, noise, per_image=True)] if noise else []), *FEDMOMENTS.encoding])
    state = server_turn(method, method.start(site.network.snapshot()), site, torch.Generator())
    alone = state
    for round in range(ROUNDS):
        if not method.asks(state):
            break
        updates = []
        for k, samples in enumerate(parts):
            payload = method.broadcast(state, k)
            client = ClientSite(k, site.network, samples, site.classes)
            sent = wire.train_client(payload, client, torch.Generator())
            update = ClientUpdate(k, sent.reply, len(samples) if sent.examples is None else sent.examples)
            updates.append(wire.decode(update, payload, site.network.layout))
        state = replace(state, participation=count(state, updates))
        state, _ = method.after_clients(state, updates, site, torch.Generator())
        state = server_turn(method, replace(state, round=round + 1), site, torch.Generator())
    return alone, state


def accuracy(site: ServerSite, state: ServerState, test: LabeledSet) -> float:
    """In per cent."""
    site.network.load(state.omega)
    return 100 * float((site.network.probabilities(test.samples).argmax(1) == test.labels).double().mean())


def cell(file: dict[str, np.ndarray], sites: int, mu: float, labels: int, seed: int) -> list[float]:
    """Accuracies: labels alone, fedmoments, and with noise for each ε."""
    train, test = (
        LabeledSet(Vectors(torch.from_numpy(file[part])[:, None]), torch.from_numpy(file[f"{part}_labels"]))
        for part in ("train", "test")
    )
    data = Dataset("features", train, test, tuple(map(str, file["classes"])))
    split = Split(seed=seed, validation=0, unlabeled=IMAGES)
    dealt = federate(data, split, labels=labels, clients=sites, kind="dirichlet", options={"mu": mu})
    head = Head(file["train"].shape[1], len(data.classes))
    if "classifier" in file:
        head.classifier = torch.from_numpy(file["classifier"])
    site = ServerSite(Network.of(head), dealt.server, len(data.classes))
    held = [dealt.samples.take(torch.as_tensor(np.asarray(dealt.partition.of(k)))) for k in range(sites)]
    parts = [samples for samples in held if isinstance(samples, Vectors) and len(samples)]
    plain = FedMoments(Supervised(), LocalSGD(), AGGREGATORS["fedavg"], population=len(parts), scanners=False)
    alone, state = trained(plain, parts, site)
    found = [accuracy(site, alone, dealt.test), accuracy(site, state, dealt.test)]
    for budget in EPSILONS:
        noisy = replace(plain, **NOISY | NARROW, image_noise=noise_for(budget, NOISY["most_steps"] + 1))
        found.append(accuracy(site, trained(noisy, parts, site)[1], dealt.test))
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("features")
    parser.add_argument("--sites", type=int, nargs="*", default=[5, 10, 30, 100])
    parser.add_argument("--seeds", type=int, nargs="*", default=[10, 11, 12])
    parser.add_argument("--mu", type=float, default=0.1)
    parser.add_argument("--labels", type=int, default=40)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    file = dict(np.load(chosen.features))
    print("| sites | labels alone | no noise, no bound |" + "".join(f" ε = {e:g} |" for e in EPSILONS))
    print("|---|---|---|" + "---|" * len(EPSILONS))
    for sites in chosen.sites:
        rows = [cell(file, sites, chosen.mu, chosen.labels, seed) for seed in chosen.seeds]
        shown = (f"{mean(c):.1f} ({', '.join(f'{v:.1f}' for v in c)})" for c in zip(*rows, strict=True))
        print(f"| {sites} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()
