"""Datasets, where they come from, how they are split between server and clients, and how clients share them."""

from fedfew.data.datasets import DATASETS, Dataset
from fedfew.data.federation import Federation, federate
from fedfew.data.partitions import PARTITIONS, Partition, heterogeneity, make_partition, partition

__all__ = [
    "DATASETS",
    "PARTITIONS",
    "Dataset",
    "Federation",
    "Partition",
    "federate",
    "heterogeneity",
    "make_partition",
    "partition",
]
