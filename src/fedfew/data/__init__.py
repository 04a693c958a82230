"""Datasets, where they come from, how they are split between server and clients, and how clients share them."""

from fedfew.data.dataset import Dataset, SiteImages
from fedfew.data.datasets import DATASETS, Entry, inventory
from fedfew.data.federation import Federation, federate
from fedfew.data.partitions import PARTITIONS, Partition, heterogeneity, make_partition, partition
from fedfew.data.sources import fetch

__all__ = [
    "DATASETS",
    "PARTITIONS",
    "Dataset",
    "Entry",
    "Federation",
    "Partition",
    "SiteImages",
    "federate",
    "fetch",
    "heterogeneity",
    "inventory",
    "make_partition",
    "partition",
]
