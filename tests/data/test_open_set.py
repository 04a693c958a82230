"""The open set is public: its images belong to the server, to no client, and asking for it moves nothing else."""

import pytest
import torch
from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.core.samples import LabeledSet
from fedfew.data.dataset import Dataset
from fedfew.data.federation import Federation, federate
from fedfew.data.samples import Images


def numbered(count: int) -> Dataset:
    """Images that say which they are in their first two pixels."""
    images = torch.zeros(count, 1, 8, 8, dtype=torch.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = torch.arange(count) // 250, torch.arange(count) % 250
    part = LabeledSet(Images(images), torch.arange(count) % 5)
    return Dataset("numbered", part, part, tuple("abcde"))


def numbers(images: Tensor) -> set[int]:
    return {250 * int(row[0, 0, 0]) + int(row[0, 0, 1]) for row in images}


def opened(made: Federation) -> Tensor:
    assert made.open is not None
    return made.open.data


def test_no_client_has_an_open_image_and_every_image_has_one_place() -> None:
    made = federate(numbered(600), labels=50, clients=4, validation=100, open=150)
    parts = [made.server.samples.data, made.validation.samples.data, opened(made), made.samples.data]
    assert [len(part) for part in parts] == [50, 100, 150, 300]
    assert set().union(*map(numbers, parts)) == set(range(600))


def test_without_an_open_set_everything_is_as_before() -> None:
    plain, some = federate(numbered(600), labels=50, clients=4), federate(numbered(600), labels=50, clients=4, open=100)
    assert len(opened(plain)) == 0
    assert torch.equal(plain.server.samples.data, some.server.samples.data)
    assert numbers(some.samples.data) < numbers(plain.samples.data)


def test_more_than_there_is_is_refused() -> None:
    with pytest.raises(FedfewError, match="E109"):
        federate(numbered(100), labels=50, clients=4, open=51)
