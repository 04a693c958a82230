"""One image more or less: how far it moves an answer, by search, and what the noise on it is accounted as."""

from dataclasses import replace

import pytest
import torch
from tests.methods.fedmoments.scene import METHOD, WIDTH, accuracy, alone, trained, world
from torch import Tensor

from fedfew.config.schema import load
from fedfew.core.errors import FedfewError
from fedfew.core.types import ClientSite, ClientUpdate
from fedfew.data.samples import Vectors
from fedfew.methods.fedmoments.bounded import MIX, Opened, class_sums, histogram, own_mix, survey_sums
from fedfew.methods.fedmoments.em import ClassScores
from fedfew.methods.fedmoments.method import FEDMOMENTS
from fedfew.models.backbones.pretrained import LENGTH
from fedfew.runtime.wire import Wire
from fedfew.transforms import epsilon
from fedfew.transforms.privacy import Private

NOISY = replace(METHOD, folds=2, fold_directions=6, most_steps=3, image_noise=0.05)


def models(rng: torch.Generator) -> list[ClassScores]:
    """ClassScores in 12 directions and, twice, in the first 6."""
    made = [torch.randn(width, 4, generator=rng, dtype=torch.float64) for width in (WIDTH, 6, 6)]
    return [ClassScores(weight * 3, weight[0], 1.0, 1.0, torch.full((4,), 0.25).double()) for weight in made]


def neighbours(rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images y of a site, and one more: far away, near zero, along an axis, or like another."""
    y = torch.randn(int(torch.randint(0, 30, (), generator=rng)), WIDTH, generator=rng).double()
    size = 10 ** float(torch.empty(()).uniform_(-3, 4, generator=rng))
    more = size * torch.randn(1, WIDTH, generator=rng).double()
    if torch.rand((), generator=rng) < 0.3:
        more = size * torch.eye(WIDTH).double()[:1]
    return y, torch.cat([y, more])


def test_no_image_found_by_search_moves_an_answer_by_more_than_its_bound() -> None:
    rng, furthest = torch.Generator().manual_seed(0), torch.zeros(3)
    for _ in range(400):
        few, more = neighbours(rng)
        chosen = models(rng)
        mix = torch.rand(4, generator=rng).double().pow(4)
        moved = [
            (survey_sums(more) - survey_sums(few)).norm(),
            (histogram(more, chosen[0]) - histogram(few, chosen[0])).norm(),
            (class_sums(more, more, chosen, mix) - class_sums(few, few, chosen, mix)).norm() / (1 - MIX) ** 0.5,
        ]
        furthest = torch.maximum(furthest, torch.stack(moved).float())
    assert (furthest <= 1).all(), "the bound that is derived"
    assert (furthest > 0.97).all(), "and it is not a loose one"


def test_without_noise_on_the_class_mix_there_is_no_such_bound() -> None:
    """Why the histogram is noisy: with the exact one, an image moves the other images' parts as well."""
    rng, largest = torch.Generator().manual_seed(1), 0.0
    for _ in range(200):
        model = models(rng)[0]
        y = 0.1 * torch.randn(300, WIDTH, generator=rng).double()
        more = torch.cat([y, 100 * torch.randn(1, WIDTH, generator=rng).double()])
        few_mix, more_mix = (own_mix(histogram(part, model), model, 0.0) for part in (y, more))
        moved = class_sums(more, more, [model, model], more_mix) - class_sums(y, y, [model, model], few_mix)
        largest = max(largest, float(moved.norm()) / (1 - MIX) ** 0.5)
    assert largest > 1


def noisy_run(noise: float, images: int = 400) -> tuple[float, float, int]:
    """Accuracy of the labels alone and after a run in which every answer passes the real transforms; answers a site."""
    method = replace(NOISY, image_noise=noise, population=10)
    wire = Wire(method, [Private(0.0, noise, per_image=True), *FEDMOMENTS.encoding])
    parts, _, site, test = world(0.1, clients=10, images=images)
    site, asked = replace(site, labeled=site.labeled.take(torch.arange(24))), 0

    def send(update: ClientUpdate, state: object) -> ClientUpdate:
        nonlocal asked
        asked += update.client == 0
        payload = method.broadcast(state, update.client)  # type: ignore[arg-type]
        client = ClientSite(update.client, site.network, Vectors(parts[update.client]), 4)
        sent = wire.train_client(payload, client, torch.Generator())
        assert sent.examples == 1 and not sent.metrics and sent.votes is None
        return wire.decode(ClientUpdate(update.client, sent.reply, 1), payload, site.network.layout)

    found = trained(method, parts, site, [range(10)] * 6, send)
    assert not method.asks(found)
    return accuracy(site, alone(method, site), test), accuracy(site, found.omega, test), asked


def test_skewed_sites_help_under_noise_and_much_noise_leaves_the_labels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedfew.methods.fedmoments.server.factor_of", lambda *_: 0.5)  # 24 labels show little else
    labels, little, answers = noisy_run(0.1)
    assert answers == 4, "the survey and three steps"
    assert little > labels + 0.05
    monkeypatch.undo()
    labels, much, _ = noisy_run(300.0)
    assert much > labels - 0.05, "the labels judge what the sites' sums are worth"


def test_answers_are_read_back_as_the_sums_and_longer_ones_than_images_make_are_not() -> None:
    y = torch.randn(50, WIDTH, generator=torch.Generator().manual_seed(2)).double() * 0.3
    opened = Opened(NOISY.shape(4, WIDTH), 0.01)
    told = ClientUpdate(0, {"sums": survey_sums(y).float()}, 1)
    read = opened([told], None)
    assert read[0].examples == 50
    assert torch.allclose(read[0].reply["sums"][:WIDTH], y.sum(0), atol=1e-4)
    assert torch.allclose(read[0].reply["sums"][WIDTH : 2 * WIDTH], y.square().sum(0), atol=1e-3)
    lie = told.reply["sums"].clone()
    lie[3] = 1e4
    assert opened([replace(told, reply={"sums": lie})], None) == []


def test_the_unit_is_settled_by_the_config_and_refused_where_there_is_no_bound() -> None:
    config = load("few-labels", {"privacy.unit": "image", "privacy.noise": 4.0})
    assert (config.method.image_noise, config.method.scanners) == (4.0, False)  # type: ignore[attr-defined]
    assert config.privacy.transform() == Private(0.0, 4.0, per_image=True)
    assert epsilon({config.privacy.counted: 4}, 1e-5) == pytest.approx(epsilon({4.0: 1}, 1e-5))
    for preset, changes in (
        ("quick", {"privacy.unit": "image", "privacy.noise": 1.0}),
        ("few-labels", {"privacy.unit": "image"}),
        ("few-labels", {"privacy.unit": "image", "privacy.noise": 1.0, "privacy.clip": 1.0}),
    ):
        with pytest.raises(FedfewError, match="E113"):
            load(preset, changes)


def test_features_longer_than_the_backbone_makes_them_count_no_more() -> None:
    _, _, site, _ = world(0.3)
    state = NOISY.warm_up(NOISY.start(site.network.snapshot()), site, torch.Generator())
    payload = NOISY.broadcast(state, 0)
    far = Vectors(torch.full((1, 1, WIDTH), 100 * LENGTH))
    sums = NOISY.train_client(payload, ClientSite(0, site.network, far, 4), torch.Generator()).reply["sums"]
    assert float(sums.norm()) <= 1
