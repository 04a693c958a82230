"""Labels at clients: who holds which, what methods make of them, and who refuses them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.contract.runs import TINY, tiny_rounds
from tests.methods.tiny import (
    CLASSES,
    MEAN,
    generator,
    gradient_of,
    linear_logits,
    linear_network,
    random_images,
    random_theta,
)
from tests.runs.own_runs import three_sites
from torch.nn.functional import cross_entropy

from fedfew.config.parts import assemble, federation_of, prepare, sites_of
from fedfew.config.schema import load
from fedfew.core.errors import ConfigErrors, FedfewError
from fedfew.core.layout import Expected
from fedfew.core.samples import LabeledSet
from fedfew.core.types import ClientSite, ClientUpdate, LabeledClientSite, Method, Trained
from fedfew.data.samples import Images
from fedfew.data.shares import ClientLabels
from fedfew.methods import METHODS
from fedfew.methods.fedmatch import FedMatch
from fedfew.runtime.gate import Gate
from fedfew.runtime.screen import models
from fedfew.training.sgd import LocalSGD
from fedfew.training.supervised import Supervised, label_loss
from fedfew.training.updates import scalar

WITH = ("fedmix", "fedmatch", "fedmatch-lite", "fedavg", "fedprox", "fedbn", "fedadam", "fedyogi", "scaffold")
BOUNDS = ("server-only", "all-labels", "pooled")
SCENE: dict[str, Any] = {"client_labels.each": 3, "client_labels.share": 0.5, "client_labels.batch": 2}


def config(**changes: Any) -> Any:
    table = TINY | {"model": {"name": "cnn", "width": 4, "norm": "group"}}
    return load(table, {key.replace("__", "."): value for key, value in changes.items()})


def refusal(**changes: Any) -> str:
    with pytest.raises(ConfigErrors) as caught:
        config(**changes)
    return str(caught.value)


def labeled_site(count: int = 12, labels: int = 4) -> LabeledClientSite:
    images, truth = random_images(count, 7), torch.randint(0, CLASSES, (labels,), generator=generator(8))
    return LabeledClientSite(
        0, linear_network(), Images(images), CLASSES, labeled=LabeledSet(Images(images[:labels]), truth)
    )


class TestWhoHoldsWhich:
    def test_a_share_of_the_clients_holds_labels_of_its_own_images(self) -> None:
        known = ClientLabels(each=4, share=0.25).known(20, seed=1)
        assert known is not None
        truth = np.repeat(np.arange(3), 10)
        held = {client: known(client, truth) for client in range(20)}
        holders = [client for client in held if len(held[client])]
        assert len(holders) == 5
        for client in holders:
            assert len(set(held[client].tolist())) == 4
            assert np.bincount(truth[held[client]], minlength=3).min() == 1  # spread over the classes: 1, 1 and 2

    def test_the_same_seed_gives_the_same_labels_and_one_client_is_the_least(self) -> None:
        first, again = (ClientLabels(each=2, share=0.01).known(10, seed=5) for _ in range(2))
        assert first is not None and again is not None
        truth = np.zeros(6, np.int64)
        assert [first(k, truth).tolist() for k in range(10)] == [again(k, truth).tolist() for k in range(10)]
        assert sum(len(first(k, truth)) > 0 for k in range(10)) == 1

    def test_a_client_with_fewer_images_has_them_all_labeled(self) -> None:
        known = ClientLabels(each=50).known(1, seed=0)
        assert known is not None and known(0, np.array([2, 0, 1])).tolist() == [0, 1, 2]

    def test_by_default_nobody_holds_any(self) -> None:
        assert ClientLabels().known(10, 0) is None

    def test_only_these_labels_reach_a_client(self, monkeypatch: pytest.MonkeyPatch) -> None:
        chosen = config(method__name="fedavg", **{key.replace(".", "__"): v for key, v in SCENE.items()})
        federation, network = prepare(chosen, federation_of(chosen))
        sites = sites_of(chosen, federation, network)
        seen: list[ClientSite] = []

        def train(self: Method, payload: Any, site: ClientSite, rng: Any) -> Trained:
            seen.append(site)
            return Trained({"psi": payload["omega"]})

        monkeypatch.setattr(METHODS["fedavg"].method, "train_client", train)
        for client in range(6):
            sites.train(0, client, {"omega": network.snapshot()})
        labeled = [site for site in seen if isinstance(site, LabeledClientSite)]
        assert len(labeled) == 3
        for site in labeled:
            index = torch.from_numpy(federation.partition.of(site.client))
            pairs = {
                (i.numpy().tobytes(), int(y)) for i, y in zip(site.samples.data, federation.truth[index], strict=True)
            }
            held = {
                (i.numpy().tobytes(), int(y))
                for i, y in zip(site.labeled.samples.data, site.labeled.labels, strict=True)
            }
            assert len(held) == min(3, len(index)) and held <= pairs


class TestTraining:
    def test_the_loss_is_the_weighted_cross_entropy_of_a_fresh_draw(self) -> None:
        site, theta = labeled_site(), random_theta(3)
        site.network.load(theta)
        loss = label_loss(site, Supervised(), batch=4, weight=2.5, rng=generator(0))()
        assert loss is not None
        expected = 2.5 * cross_entropy(linear_logits(theta, site.labeled.samples.data), site.labeled.labels)
        torch.testing.assert_close(loss, expected)

    def test_a_client_without_labels_draws_nothing(self) -> None:
        rng = generator(0)
        plain = ClientSite(0, linear_network(), Images(random_images(4, 1)), CLASSES)
        assert label_loss(plain, Supervised(), 4, 1.0, rng)() is None
        assert torch.equal(rng.get_state(), generator(0).get_state())

    @pytest.mark.parametrize("method", ["fedavg", "fedmix"])
    def test_labels_alone_are_one_step_of_their_gradient(self, method: str) -> None:
        """With no weight on the unlabeled loss, one batch of all images is one step of SGD on the labels."""
        site, omega = labeled_site(), random_theta(3)
        off: dict[str, dict[str, Any]] = {
            "fedavg": {"objective__name": "pi-model", "objective__weight": 0.0},
            "fedmix": {"method__lambda_ce": 0.0, "method__lambda_consistency": 0.0, "method__lambda_anchor": 0.0},
        }
        scene = {"client_labels__each": 4, "client_labels__batch": 4, "client__batch": 12}
        chosen = config(method__name=method, **scene, **off[method])
        payload = {"omega": omega, "lr": scalar(0.1), "progress": scalar(0.0)}
        trained = chosen.method.train_client(payload, site, generator(2))
        theta = omega.clone().requires_grad_()
        step = gradient_of(cross_entropy(linear_logits(theta, site.labeled.samples.data), site.labeled.labels), theta)
        torch.testing.assert_close(trained.reply["psi"], omega - 0.1 * step)
        assert trained.metrics["steps"] == 1

    def test_fedmatch_trains_sigma_on_them_and_sends_its_change(self) -> None:
        site, sigma, psi = labeled_site(), random_theta(3), 0.2 * random_theta(4)
        method = fedmatch()
        trained = method.train_client({"sigma": sigma, "psi": psi, "lr": scalar(0.1)}, site, generator(2))
        theta = (sigma + psi).requires_grad_()
        step = 10 * gradient_of(
            cross_entropy(linear_logits(theta, site.labeled.samples.data), site.labeled.labels), theta
        )
        change = torch.zeros_like(sigma)
        change[trained.reply["sigma_index"].long()] = trained.reply["sigma_change"]
        torch.testing.assert_close(change, -0.1 * step, atol=2e-5, rtol=1e-5)
        layout = site.network.layout
        schema = method.reply_schema(layout)
        sent, made = models(schema, {"sigma": sigma, "psi": psi}, trained.reply) or (sigma, sigma)
        moved = torch.zeros_like(sigma).index_add(0, trained.reply["index"].long(), trained.reply["change"])
        assert set(schema) == set(trained.reply) and torch.equal(sent, sigma + psi)
        torch.testing.assert_close(made, sent + change + moved)

    def test_fedmatch_without_this_scenario_sends_what_it_always_did(self) -> None:
        plain = FedMatch(Supervised(), LocalSGD(), MEAN)
        assert set(plain.reply_schema(linear_network().layout)) == {"index", "change"}

    @pytest.mark.parametrize("labels", [0, 20])
    @pytest.mark.parametrize("method", WITH)
    def test_every_such_method_learns_with_and_without_labels_at_the_server(self, method: str, labels: int) -> None:
        chosen = config(method__name=method, labels=labels, **{key.replace(".", "__"): v for key, v in SCENE.items()})
        for state, record in tiny_rounds(chosen):
            assert not record["missing"] and torch.isfinite(state.omega).all()

    @pytest.mark.parametrize("method", BOUNDS)
    def test_bounds_stand_beside(self, method: str) -> None:
        chosen = config(method__name=method, client_labels__each=3)
        assert len(tiny_rounds(chosen)) == 2


def fedmatch() -> FedMatch:
    scene = ClientLabels(each=4, batch=4)
    return FedMatch(Supervised(), LocalSGD(batch=12, lr=0.1), MEAN, threshold=1.0, client_labels=scene)


class TestWhoRefuses:
    @pytest.mark.parametrize(
        "method", [name for name in METHODS if name not in (*WITH, *BOUNDS, "fedmoments", "labels-names")]
    )
    def test_other_methods_say_why(self, method: str) -> None:
        said = refusal(method__name=method, client_labels__each=3)
        assert "E113" in said and "no loss for labels of their own" in said and "fedmatch" in said

    def test_somebody_must_have_labels(self) -> None:
        assert "there are no labels" in refusal(labels=0, method__name="fedavg")

    @pytest.mark.parametrize(
        ("key", "value"),
        [("vote__prior", "em"), ("method__name", "server-only"), ("aggregator__name", "fltrust")],
    )
    def test_what_needs_the_servers_labels_is_refused_without_any(self, key: str, value: str) -> None:
        base = {"method__name": "fedmix", "labels": 0, "client_labels__each": 3}
        assert "needs the server's labels" in refusal(**(base | {key: value}))

    def test_a_real_network_has_images_only(self) -> None:
        said = refusal(method__name="fedavg", client_labels__each=3, fleet__kind="flower", fleet__network="net")
        assert "have images only" in said

    def test_sites_whose_classes_nobody_knows_are_refused(self) -> None:
        chosen = load(
            {"dataset": {"name": "tests.runs.own_runs:three_sites"}, "method": {"name": "fedavg"}, "labels": 20},
            {"client_labels.each": 3, "fleet.kind": "inline"},
        )
        assert assemble(chosen) is not None  # these sites' classes are known to the simulation
        with pytest.raises(FedfewError, match="the classes of these sites' images are unknown"):
            assemble(load(chosen.document, {"dataset.name": "tests.methods.test_client_labels:unknown_sites"}))


def unknown_sites() -> Any:
    found = three_sites()
    assert found.sites is not None
    return replace(found, sites=replace(found.sites, truth=None))


def test_the_gate_compares_lengths_within_a_group() -> None:
    schema = {
        name: Expected((None,), dtype, limit=9, index=dtype == torch.int32, delta=dtype != torch.int32, group=group)
        for name, dtype, group in (
            ("index", torch.int32, ""), ("change", torch.float32, ""),
            ("sigma_index", torch.int32, "sigma_"), ("sigma_change", torch.float32, "sigma_"),
        )
    }  # fmt: skip
    reply = {
        "index": torch.arange(3, dtype=torch.int32), "change": torch.ones(3),
        "sigma_index": torch.arange(2, dtype=torch.int32), "sigma_change": torch.ones(2),
    }  # fmt: skip
    sent = {"sigma": torch.ones(9)}
    assert Gate().check(ClientUpdate(0, reply, 1), sent, schema) is None
    refused = Gate().check(ClientUpdate(0, reply | {"change": torch.ones(2)}, 1), sent, schema)
    assert refused is not None and "different lengths" in refused.reason
