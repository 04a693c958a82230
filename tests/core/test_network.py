"""A bound network: the module computes what it computed before, and weights and gradients are one vector each."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedfew.core.evaluation import evaluate, score
from fedfew.core.layout import Layout
from fedfew.core.network import Network
from fedfew.core.samples import LabeledSet
from fedfew.data.samples import Images
from fedfew.training.sgd import LocalSGD, descend


def small_module() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(5)
        return nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 5)
        )


def some_images(count: int = 7) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.5)


def normalised(images: torch.Tensor) -> torch.Tensor:
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    return (images.float() / 255 - mean) / std


def test_binding_changes_no_output_and_no_gradient() -> None:
    plain, images, labels = small_module(), some_images(), torch.tensor([0, 1, 2, 3, 4, 0, 1])
    network = Network.of(copy.deepcopy(plain))

    network.module.train()
    cross_entropy(network(Images(images, mean=MEAN, std=STD)), labels).backward()
    plain.train()
    logits = plain(normalised(images))
    cross_entropy(logits, labels).backward()

    slopes = network.layout.views(network.gradient)
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(slopes[name], parameter.grad, rtol=1e-4, atol=1e-6)
    kept = network.layout.views(network.vector)
    for name in ("1.running_mean", "1.running_var"):  # the pass moved the statistics, and the vector has them
        torch.testing.assert_close(kept[name], dict(plain.named_buffers())[name])
    assert not network.gradient[network.layout.trainable :].any()


def test_writing_the_vector_changes_the_module() -> None:
    network = Network.of(small_module())
    before = network.snapshot()

    network.load(before + 1)

    assert all(
        torch.equal(dict(network.module.state_dict())[name], view)
        for name, view in network.layout.views(before + 1).items()
    )
    network.vector[0] = 42.0
    assert next(network.module.parameters())[0, 0, 0, 0].item() == 42.0
    network.load(before)
    assert torch.equal(network.snapshot(), before)
    kept = network.snapshot()
    network.vector.zero_()
    assert torch.equal(kept, before), "a snapshot is a copy"


def test_pixels_are_normalised_per_channel() -> None:
    device = Network.of(small_module()).device
    scaled = Images(some_images(), mean=MEAN, std=STD)
    torch.testing.assert_close(scaled.inputs(device), normalised(some_images()))
    torch.testing.assert_close(Images(some_images()).inputs(device), some_images().float() / 255)


def test_probabilities_need_no_autograd_and_leave_everything_as_it_was() -> None:
    network = Network.of(small_module())
    network.module.train()
    before = network.snapshot()

    inside = network.probabilities(Images(some_images()), batch=3)

    assert inside.shape == (7, 5)
    torch.testing.assert_close(inside.sum(1), torch.ones(7))
    assert torch.equal(inside, torch.cat([network.probabilities(Images(part)) for part in some_images().split(3)]))
    assert network.module.training and torch.equal(network.snapshot(), before)  # no running statistics were touched
    assert network.probabilities(Images(some_images(0))).shape == (0, 5)
    (inside * 2).requires_grad_()  # an ordinary tensor, usable under autograd


def test_accuracy_and_loss_by_hand() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(3, 2, bias=False))
    network = Network.of(module)
    network.load(torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 0.0]))  # logits are the first two pixels
    images = torch.tensor([[255, 0, 9], [0, 255, 9], [255, 0, 9]], dtype=torch.uint8).view(3, 3, 1, 1)
    truth = LabeledSet(Images(images), torch.tensor([0, 1, 1]))

    accuracy, loss = evaluate(network, truth, batch=2)

    right, wrong = torch.tensor(1 + torch.e**-1).log(), torch.tensor(1 + torch.e).log()
    assert accuracy == pytest.approx(2 / 3)
    assert loss == pytest.approx(float(2 * right + wrong) / 3, rel=1e-6)
    scores = score(network, network.snapshot(), truth, LabeledSet(Images(images[:0]), truth.labels[:0]))
    assert scores.accuracy == accuracy and scores.validation is None
    assert scores.loss == pytest.approx(loss, rel=1e-6)  # another batch size, so another last bit
    assert score(network, network.snapshot(), truth, LabeledSet(Images(images[:1]), truth.labels[:1])).validation == 1.0


def half_frozen() -> nn.Module:
    """A frozen convolution with batch norm, and a head that trains."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    body.requires_grad_(False)
    return nn.Sequential(body, nn.Flatten(), nn.Linear(4 * 6 * 6, 3))


def network_of(module: nn.Module) -> Network:
    return Network.of(module)


def trained(network: Network) -> None:
    images = torch.randint(0, 256, (8, 1, 8, 8), dtype=torch.uint8)

    def loss_of(indices: Tensor) -> Tensor:
        return network(Images(images[indices])).square().mean()

    sgd = LocalSGD(epochs=2, batch=4, lr=0.1, momentum=0.9, weight_decay=0.1, clip=1.0)
    descend(network, sgd, 0.1, 8, loss_of, torch.Generator().manual_seed(0))


def test_only_what_trains_has_a_place_in_the_vector() -> None:
    layout = Layout.of(half_frozen())
    assert layout.names == ("2.weight", "2.bias")
    assert layout.size == layout.trainable == 3 * 144 + 3


def test_training_leaves_frozen_bits_alone() -> None:
    module = half_frozen()
    before = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
    network = network_of(module)
    trained(network)
    after = module.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items() if name.startswith("0."))
    assert not torch.equal(after["2.weight"], before["2.weight"])
    assert sorted(network.frozen) == sorted(n for n in before if n.startswith("0.") and before[n].is_floating_point())


def test_a_batch_norm_without_weights_in_a_net_that_trains_still_travels() -> None:
    layout = Layout.of(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, affine=False)))
    assert "1.running_mean" in layout.names


def test_a_train_method_of_its_own_is_not_passed_over() -> None:
    class Own(nn.Sequential):
        calls = 0

        def train(self, mode: bool = True) -> "Own":
            self.calls += 1
            super().train(mode)
            return self

    module = Own(nn.Flatten(), nn.Linear(64, 3))
    trained(network_of(module))
    assert module.calls > 0


def test_all_tensors_come_back_by_name() -> None:
    first, second = network_of(half_frozen()), network_of(half_frozen())
    trained(first)
    for tensor in second.frozen.values():
        tensor.zero_()
    second.load_all(first.layout.views(first.vector) | first.frozen)
    images = torch.randint(0, 256, (4, 1, 8, 8), dtype=torch.uint8)
    assert torch.equal(first.probabilities(Images(images)), second.probabilities(Images(images)))
