"""Datasets, where they come from, how they are split between server and clients, and how clients share them."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fedfew.core.registry import Registry

if TYPE_CHECKING:
    from fedfew.data.dataset import Dataset
    from fedfew.data.shares import Partition, VirtualPartition

DATASETS: "Registry[Callable[..., Dataset]]" = Registry(
    "fedfew.data",
    {
        "mini-mnist": ("included:mini_mnist", "7,000 MNIST digits included in fedfew."),
        "mini-cifar": ("included:mini_cifar", "2,800 photographs of CIFAR-10 included in fedfew."),
        "cifar10": (
            "fetched:cifar10",
            "60,000 color photographs of ten kinds of animals and vehicles, 32×32 (Krizhevsky 2009).",
        ),
        "mnist": ("fetched:mnist", "70,000 handwritten digits, 28×28 (LeCun, Cortes and Burges 1998)."),
        "fashion-mnist": (
            "fetched:fashion_mnist",
            "70,000 photographs of ten kinds of clothing, 28×28 (Xiao, Rasul and Vollgraf 2017).",
        ),
        "folder": (
            "images.own:folder",
            "Your own images: server/<class>/…, clients/<site>/…, test/<class>/…; the clients are the sites.",
        ),
        "vectors": (
            "rows.datasets:vectors",
            "Your own vectors or tables: one file (CSV, parquet, NPZ), or one at the server and one for each site.",
        ),
        "text": (
            "rows.datasets:text",
            "Your own texts: a column of a table, or files in server/<class>/, clients/<site>/ and test/<class>/.",
        ),
        "npz": ("npz:npz", "Your own arrays in an NPZ file, such as MedMNIST."),
        "parquet": ("tables:parquet", "Your own images in parquet files."),
        "huggingface": (
            "tables:huggingface",
            "A Hugging Face dataset: a folder written by save_to_disk, or a name on the hub.",
        ),
    },
    group="fedfew.datasets",
)
NOUNS = {"vectors": "rows", "text": "texts"}
"""What the samples of a dataset are called; others are images."""
PARTITIONS: "Registry[Callable[..., Partition | VirtualPartition]]" = Registry(
    "fedfew.data",
    {
        "iid": ("partitions:iid", "All clients alike."),
        "dirichlet": (
            "partitions:dirichlet",
            "The paper's: each client draws class shares ~ Dir(μ), and takes what is left of used-up classes.",
        ),
        "dirichlet-by-class": (
            "partitions:dirichlet_by_class",
            "The usual one: each class is divided among the clients by shares ~ Dir(μ), so sizes vary too.",
        ),
        "shards": (
            "partitions:shards",
            "McMahan's: images sorted by label and cut into shards, of which a client gets a few.",
        ),
        "virtual": (
            "partitions:virtual",
            "Any number of clients, with a cost only for those selected; their images follow from the seed.",
        ),
        "users": ("partitions:by_user", "A user's images stay together at one client."),
    },
    group="fedfew.partitions",
)
