"""FedBN and measured statistics: what stays with a client, what the server gets, and what it evaluates with."""

from dataclasses import replace

import pytest
import torch
from tests.methods.tiny import generator as seeded
from tests.methods.tiny import random_images as images
from torch import nn

from fedfew.aggregators import AGGREGATORS
from fedfew.core.errors import FedfewError
from fedfew.core.network import Network
from fedfew.core.samples import LabeledSet
from fedfew.core.types import ClientSite, ClientUpdate, ServerSite
from fedfew.data.samples import Images
from fedfew.methods.fedavg import FEDBN, FedAvg
from fedfew.methods.grouping import Grouping
from fedfew.objectives.pseudo_labels import PseudoLabel
from fedfew.runtime.wire import Wire
from fedfew.training.sgd import LocalSGD
from fedfew.training.supervised import Supervised, train_server
from fedfew.transforms.norm_policy import LocalNorm, ServerStatistics, norm_entries, with_statistics

SGD = LocalSGD(epochs=1, batch=4, lr=0.05)
SERVER = Supervised(SGD)


def normed(norm: str = "batch") -> Network:
    layer = {"batch": nn.BatchNorm2d(2), "group": nn.GroupNorm(1, 2), "none": nn.Identity()}[norm]
    module = nn.Sequential(nn.Conv2d(1, 2, 3), layer, nn.Flatten(), nn.Linear(72, 3))
    return Network.of(module)


def client(network: Network, k: int = 0) -> ClientSite:
    return ClientSite(k, network, Images(images(8, 20 + k) // (k + 1), flips=False), 3)


def server(network: Network) -> ServerSite:
    return ServerSite(network, LabeledSet(Images(images(6, 9), flips=False), torch.arange(6) % 3), 3)


def fedavg() -> FedAvg:
    return FedAvg(SERVER, SGD, AGGREGATORS["fedavg"], PseudoLabel(threshold=0.0))


def test_norm_entries_are_scale_shift_and_statistics() -> None:
    network = normed()
    mask = norm_entries(network)
    views = network.layout.views(network.vector)
    norm = {name for name in views if name.startswith("1.")}
    assert norm == {"1.weight", "1.bias", "1.running_mean", "1.running_var"}
    assert int(mask.sum()) == 4 * 2
    assert torch.equal(mask, network.layout.select(network.vector, frozenset(norm)))
    assert int(norm_entries(normed("group")).sum()) == 2 * 2
    assert not norm_entries(normed("none")).any()


def test_clients_keep_their_normalisation_and_send_back_the_servers() -> None:
    network = normed()
    method = FedAvg(SERVER, SGD, AGGREGATORS["fedavg"], PseudoLabel(threshold=0.0), order="before")
    wire = Wire(method, FEDBN.transforms)
    mask, sites = norm_entries(network), [client(network, 0), client(network, 1)]
    state = method.warm_up(method.start(network.snapshot()), server(network), seeded(0))
    payload = method.broadcast(state, 0)
    first = [wire.train_client(payload, site, seeded(1)) for site in sites]
    plain = [fedavg().train_client(payload, client(network, k), seeded(1)).reply["psi"] for k in range(2)]
    for trained, alone, site in zip(first, plain, sites, strict=True):
        assert torch.equal(trained.reply["psi"][~mask], alone[~mask]), "the first round is FedAvg's"
        assert torch.equal(trained.reply["psi"][mask], payload["omega"][mask]), "nothing of the client's norm travels"
        assert torch.equal(site.memory["norm.omega"], alone[mask])
    assert not torch.equal(sites[0].memory["norm.omega"], sites[1].memory["norm.omega"])

    updates = [ClientUpdate(k, trained.reply, 8, trained.metrics) for k, trained in enumerate(first)]
    after, _ = method.after_clients(replace(state, participation={0: 1, 1: 1}), updates, server(network), seeded(2))
    assert torch.allclose(after.omega[mask], state.sigma[mask], atol=1e-6), "the server evaluates with its own"
    assert torch.allclose(after.omega[~mask], (plain[0] + plain[1])[~mask] / 2, atol=1e-6)

    second = method.broadcast(method.before_clients(replace(after, round=1), server(network), seeded(3)), 0)
    own = second["omega"].clone()
    own[mask] = sites[0].memory["norm.omega"]
    expected = fedavg().train_client(second | {"omega": own}, client(network, 0), seeded(5)).reply["psi"]
    trained = wire.train_client(second, sites[0], seeded(5))
    assert torch.equal(trained.reply["psi"][~mask], expected[~mask])
    assert torch.equal(sites[0].memory["norm.omega"], expected[mask])


def test_a_net_without_normalisation_is_refused() -> None:
    network = normed("none")
    with pytest.raises(FedfewError, match=r"E113 model.name: the model has no normalisation layers"):
        Wire(fedavg(), [LocalNorm()]).check(server(network))


def test_statistics_are_those_of_the_images_whatever_the_batches() -> None:
    network = normed()
    data = images(50, 4)
    start = network.snapshot()
    outputs = network.module[0](Images(data).inputs(network.device))  # type: ignore[index]
    whole = with_statistics(network, start, Images(data))
    views = network.layout.views(whole)
    assert torch.allclose(views["1.running_mean"], outputs.mean((0, 2, 3)), atol=1e-5)
    assert torch.allclose(views["1.running_var"], outputs.var((0, 2, 3)), atol=1e-5)
    in_parts = network.layout.views(with_statistics(network, start, Images(data), batch=15))  # 15, 15, 15 and 5 images
    assert torch.allclose(in_parts["1.running_mean"], views["1.running_mean"], atol=1e-5)
    assert torch.equal(whole[: network.layout.trainable], start[: network.layout.trainable])
    assert network.module[1].momentum == 0.1  # type: ignore[index]


def test_server_data_statistics_replace_the_clients() -> None:
    network = normed()
    site, method = server(network), fedavg()
    state = replace(method.warm_up(method.start(network.snapshot()), site, seeded(0)), participation={0: 1})
    strange = state.sigma.clone()
    strange[network.layout.trainable :] = 1e6
    after, _ = method.after_clients(state, [ClientUpdate(0, {"psi": strange}, 8)], site, seeded(1))
    after = Wire(method, [ServerStatistics()]).after_round(after, site)
    trained = train_server(SERVER, strange, state, site, seeded(1))
    assert torch.equal(after.omega, with_statistics(network, trained, site.labeled.samples))
    assert float(after.omega.abs().max()) < 1e4


def test_server_data_statistics_reach_the_groups_models_too() -> None:
    network = normed()
    site, method = server(network), Grouping(SERVER, SGD, AGGREGATORS["uniform"], groups=2)
    state = method.warm_up(method.start(network.snapshot()), site, seeded(0))
    strange = state.sigma.clone()
    strange[network.layout.trainable :] = 1e6
    updates = [ClientUpdate(k, {"psi": strange + k}, 8, {"steps": 1.0}) for k in range(4)]
    after, _ = method.after_clients(replace(state, participation=dict.fromkeys(range(4), 1)), updates, site, seeded(1))
    after = ServerStatistics().after_round(after, site)
    assert after.extra["groups"].shape == (2, network.layout.size)
    assert float(after.extra["groups"].abs().max()) < 1e5
