"""The bounds beside which methods are reported: server-only asks nobody, pooled has it all, all-labels is told all."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.methods.tiny import (
    CLASSES,
    MEAN,
    client_site,
    generator,
    linear_network,
    random_labeled,
    random_theta,
    server_site,
)

from fedfew.core.errors import FedfewError
from fedfew.core.samples import LabeledSet
from fedfew.core.types import ClientUpdate, Method, Oracle, OracleSite
from fedfew.methods.all_labels import AllLabels
from fedfew.methods.fedmix import FedMix
from fedfew.methods.pooled import Pooled, sequence
from fedfew.methods.server_only import ServerOnly
from fedfew.runtime.rounds import server_turn
from fedfew.runtime.site import Sites
from fedfew.training.sgd import LocalSGD
from fedfew.training.supervised import Supervised, train_supervised

SERVER, CLIENT = Supervised(LocalSGD(lr=0.2, batch=4)), LocalSGD(lr=0.1, batch=5)


def test_server_only_is_the_servers_training_and_nothing_else() -> None:
    method, site, omega = ServerOnly(SERVER, CLIENT, MEAN, lambda_s=2.0), server_site(), random_theta(1)
    begun = replace(method.start(omega), sigma=random_theta(77))  # the last σ plays no part
    trained = method.warm_up(begun, site, generator(0))
    done, _ = method.after_clients(trained, [], site, generator(1))

    expected, _ = train_supervised(site.network, omega, site.labeled, SERVER, 0.2, generator(0), scale=2.0)
    assert torch.equal(done.omega, expected)
    stray = [ClientUpdate(0, {"psi": random_theta(9)}, 5)]
    assert torch.equal(method.after_clients(trained, stray, site, generator(1))[0].omega, expected)
    assert not method.asks(trained) and method.reply_schema(site.network.layout) == {}
    with pytest.raises(FedfewError, match="E113"):
        method.train_client({}, client_site(0), generator(0))


@pytest.mark.parametrize("clip", [0.0, 0.1])
def test_all_labels_is_supervised_training_at_every_client_clipped_as_the_servers(clip: float) -> None:
    """A clip that is set for another loss and its anchor would hold true labels back, or let them run away."""
    server = replace(SERVER, sgd=replace(SERVER.sgd, clip=clip))
    method, labeled, omega = AllLabels(server, CLIENT, MEAN, augment="none"), random_labeled(12, 3), random_theta(1)
    site = OracleSite(0, linear_network(), labeled, CLASSES)
    payload = {"omega": omega, "lr": torch.tensor(0.1, dtype=torch.float64)}

    trained = method.train_with_labels(payload, site, generator(0))

    how = Supervised(replace(CLIENT, clip=clip))
    expected, steps = train_supervised(linear_network(), omega, labeled, how, 0.1, generator(0))
    assert torch.equal(trained.reply["psi"], expected) and trained.metrics["steps"] == steps == 3
    assert trained.votes is None, "nothing was guessed, so nothing is reported as a guess"


def test_all_labels_starts_the_clients_from_the_servers_model_and_averages() -> None:
    method, site, omega = AllLabels(SERVER, CLIENT, MEAN), server_site(), random_theta(1)
    begun = replace(method.start(omega), sigma=random_theta(77))
    state = method.warm_up(begun, site, generator(0))
    sigma, _ = train_supervised(site.network, omega, site.labeled, SERVER, 0.2, generator(0))
    assert torch.equal(method.broadcast(state, 0)["omega"], sigma)
    updates = [ClientUpdate(k, {"psi": random_theta(k)}, 5) for k in (3, 4)]
    done, outcome = method.after_clients(replace(state, participation={3: 1, 4: 1}), updates, site, generator(1))
    mean = (random_theta(3) + random_theta(4)) / 2
    torch.testing.assert_close(outcome.clients, mean)
    assert torch.equal(done.omega, train_supervised(site.network, mean, site.labeled, SERVER, 0.2, generator(1))[0])


def test_a_warm_up_is_the_same_for_those_who_ask_nobody() -> None:
    method, site, omega = ServerOnly(SERVER, CLIENT, MEAN, warmup=3), server_site(), random_theta(1)
    rng = generator(0)
    warm = train_supervised(
        site.network, omega, site.labeled, replace(SERVER, sgd=replace(SERVER.sgd, epochs=3)), 0.2, rng
    )[0]
    expected, _ = train_supervised(site.network, warm, site.labeled, SERVER, 0.2, rng)
    state = method.warm_up(method.start(omega), site, generator(0))
    assert torch.equal(state.sigma, expected)
    later = method.before_clients(replace(state, omega=omega, round=1), site, generator(0))
    assert torch.equal(later.sigma, train_supervised(site.network, omega, site.labeled, SERVER, 0.2, generator(0))[0])


def test_pooled_passes_over_as_many_images_as_a_round_of_the_others() -> None:
    pool = random_labeled(40, 7)
    site = replace(server_site(6), pool=pool, cohort_images=9)
    method = Pooled(Supervised(LocalSGD(lr=0.2, batch=4, epochs=2)), replace(CLIENT, epochs=3), MEAN)
    drawn = sequence(40, 39, 39, 5)  # 2 × 6 at the server, 3 × 9 at the clients
    assert sorted(torch.cat([sequence(40, 0, 39, 5), drawn])[:40].tolist()) == list(range(40)), (
        "one pass before another"
    )
    state = replace(method.start(random_theta(1)), round=1, extra={"lot": torch.tensor(5)})
    done = server_turn(method, state, site, generator(0))
    labeled = LabeledSet(pool.samples.take(drawn), pool.labels[drawn])
    expected, steps = train_supervised(
        site.network, state.omega, labeled, Supervised(LocalSGD(lr=0.2, batch=4)), 0.2, generator(0)
    )
    assert torch.equal(done.sigma, expected) and steps == 10
    with pytest.raises(FedfewError, match="E113"):
        method.before_clients(state, server_site(6), generator(0))


def alternate(client: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Client 0 holds the even images, client 1 the odd ones."""
    return np.arange(client, 10, 2)


def sites(algorithm: Method, labeled: LabeledSet) -> Sites:
    none = LabeledSet(labeled.samples.like(labeled.samples.data[:0]), labeled.labels[:0])
    return Sites(algorithm, linear_network(), labeled.samples, labeled.labels, alternate, CLASSES, 0, none, none)


def test_labels_reach_all_labels_through_its_own_site_and_no_other_method() -> None:
    labeled, omega = random_labeled(10, 3), random_theta(1)
    changed = LabeledSet(labeled.samples, (labeled.labels + 1) % CLASSES)
    payload = {"omega": omega, "lr": torch.tensor(0.1, dtype=torch.float64)}
    told, blind = AllLabels(SERVER, CLIENT, MEAN), FedMix(SERVER, CLIENT, MEAN, lambda_anchor=0.0, threshold=0.4)

    def replies(method: Method) -> list[torch.Tensor]:
        answers = [sites(method, data).train(0, 1, payload) for data in (labeled, changed)]
        assert all(isinstance(answer, ClientUpdate) and answer.examples == 5 for answer in answers)
        return [answer.reply["psi"] for answer in answers if isinstance(answer, ClientUpdate)]

    one, other = replies(told)
    assert not torch.equal(one, other), "other labels, another model"
    one, other = replies(blind)
    assert torch.equal(one, other), "labels make no difference to who cannot see them"
    assert isinstance(told, Oracle) and not isinstance(blind, Oracle)
    with pytest.raises(FedfewError, match="E113"):
        told.train_client(payload, client_site(0), generator(0))
