"""A dataset of one's own that brings its sites, and methods of one's own with awkward habits."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from fedfew.core.layout import Payload
from fedfew.core.types import ClientSite, Trained
from fedfew.data import DATASETS
from fedfew.data.dataset import Dataset, SiteSamples
from fedfew.methods.fedmix import FedMix


def three_sites() -> Dataset:
    """Three sites of thirty digits each, whose classes a simulation knows."""
    digits = DATASETS["mini-mnist"]()
    sites = SiteSamples(
        ("north", "south", "west"),
        digits.train.samples.like(digits.train.samples.data[-90:]),
        np.array([0, 30, 60, 90]),
        digits.train.labels[-90:],
    )
    return replace(digits, name="three-sites", sites=sites)


@dataclass(frozen=True)
class AlwaysFails(FedMix):
    """Its clients cannot train."""

    def train_client(self, payload: Payload, site: ClientSite, rng: torch.Generator) -> Trained:
        raise ValueError("no such thing")
