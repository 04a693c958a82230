"""Frozen parameters keep their bits, cost no traffic, and their statistics do not drift."""

import torch
from torch import Tensor, nn

from fedfew.core.layout import Layout
from fedfew.core.network import Network
from fedfew.data.samples import Images
from fedfew.training.sgd import LocalSGD, descend


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
