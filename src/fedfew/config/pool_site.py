"""The work of a pool's process: rebuilds the method and the network from the config it is sent, then serves jobs."""

import socket

import torch

from fedfew.config.parts import network_of, sites_of
from fedfew.config.schema import check
from fedfew.core.memory import keep_freed_memory
from fedfew.core.samples import LabeledSet
from fedfew.data.federation import Federation, Origin
from fedfew.data.partitions import Partition
from fedfew.data.samples import samples_of
from fedfew.data.shares import VirtualPartition
from fedfew.runtime.arena import Arena
from fedfew.runtime.channel import Channel
from fedfew.runtime.worker import serve


def work(channel_fd: int, images_fd: int, payloads_fd: int, scoring_fd: int, answers_fd: int) -> None:
    """Wait for the first message, build, serve."""
    torch.set_num_threads(1)
    keep_freed_memory()
    channel = Channel(socket.socket(fileno=channel_fd))
    hello = channel.receive()
    if hello is None:
        return
    data = Arena(images_fd).read(hello["tensors"], copy=False)
    samples = samples_of(data["samples"], hello["samples"])
    federation = Federation(
        server=LabeledSet(samples.like(data["samples"][:0]), data["truth"][:0]),  # the server's labels stay there
        validation=LabeledSet(samples.like(data["validation_samples"]), data["validation_labels"]),
        test=LabeledSet(samples.like(data["test_samples"]), data["test_labels"]),
        samples=samples,
        truth=data["truth"],
        partition=(
            VirtualPartition(**hello["virtual"], labels=data["truth"].numpy())
            if hello["virtual"]
            else Partition(data["order"].numpy(), data["offsets"].numpy())
        ),
        classes=tuple(hello["classes"]),
        origin=Origin(hello["origin"], "", {}) if hello["origin"] else None,
    )
    config = check(hello["config"], allow_code=None)
    sites = sites_of(config, federation, network_of(config, federation))
    serve(sites, channel, Arena(payloads_fd), Arena(scoring_fd), Arena(answers_fd))
