"""Datasets, where they come from, how they are split between server and clients, and how clients share them."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fedfew.core.settings import Registry

if TYPE_CHECKING:
    from fedfew.data.dataset import Dataset
    from fedfew.data.shares import Partition, VirtualPartition

DATASETS: "Registry[Callable[..., Dataset]]" = Registry(
    "fedfew.data",
    {
        "mini-mnist": ("included:mini_mnist", "7,000 MNIST digits included in fedfew."),
        "mini-cifar": ("included:mini_cifar", "2,800 photographs of CIFAR-10 included in fedfew."),
        "cifar10": ("fetched:cifar10", "60,000 color photographs of animals and vehicles, 32×32 (Krizhevsky 2009)."),
        "cifar100": ("fetched:cifar100", "60,000 color photographs of a hundred kinds, 32×32 (Krizhevsky 2009)."),
        "svhn": ("fetched:svhn", "99,289 digits of house numbers in color, 32×32 (Netzer et al. 2011)."),
        "stl10": ("fetched:stl10", "Photographs, 96×96: 13,000 labeled, 100,000 at the clients (Coates et al. 2011)."),
        "mnist": ("fetched:mnist", "70,000 handwritten digits, 28×28 (LeCun, Cortes and Burges 1998)."),
        "fashion-mnist": ("fetched:fashion_mnist", "70,000 photographs of clothing, 28×28 (Xiao et al. 2017)."),
        "medmnist": ("npz:medmnist", "Medical images of eleven kinds, 28 to 224 pixels a side (Yang et al. 2023)."),
        "femnist": ("leaf:femnist", "800,000 characters by 3,550 writers, who can be clients (Caldas et al. 2018)."),
        "folder": ("images.own:folder", "Your own images: server/<class>/, clients/<site>/ and test/<class>/."),
        "image-folder": ("images.labeled:image_folder", "Labeled images in class folders or a table: ImageNet, ISIC."),
        "vectors": ("rows.datasets:vectors", "Your own vectors or tables (CSV, parquet, NPZ), in one file or several."),
        "text": ("rows.datasets:text", "Your own texts: a column of a table, or files in folders as for images."),
        "npz": ("npz:npz", "Your own arrays in an NPZ file, such as MedMNIST."),
        "parquet": ("tables:parquet", "Your own images in parquet files."),
        "huggingface": ("tables:huggingface", "A Hugging Face dataset: a name on the hub, or a saved folder."),
    },
    group="fedfew.datasets",
)
NOUNS = {"vectors": "rows", "text": "texts"}
"""What the samples of a dataset are called; others are images."""


def noun_of(dataset: str) -> str:
    """What the samples of a dataset are called."""
    return NOUNS.get(dataset, "images")


PARTITIONS: "Registry[Callable[..., Partition | VirtualPartition]]" = Registry(
    "fedfew.data",
    {
        "iid": ("partitions:iid", "All clients alike."),
        "dirichlet": ("partitions:dirichlet", "The paper's: each client draws its class shares from Dir(μ)."),
        "dirichlet-by-class": ("partitions:dirichlet_by_class", "The usual one: shares from Dir(μ) divide each class."),
        "shards": ("partitions:shards", "McMahan's: images sorted by label and cut into shards; a client gets a few."),
        "virtual": ("partitions:virtual", "Any number of clients; only those selected cost anything."),
        "users": ("partitions:by_user", "A user's images stay together at one client."),
        "flower": ("partitions:flower", "A partitioner of the package flwr-datasets."),
    },
    group="fedfew.partitions",
)
