"""A pool's worker process, started as ``python -m fedfew.config.worker FD…`` with its channel, arenas and lifeline.

It rebuilds the method and the network from the config it is sent, then serves jobs. The lifeline is watched before
torch is imported: that takes seconds, in which the pool may end.
"""

import socket
import sys
from dataclasses import replace

from fedfew.runtime.channel import Channel, end_with_parent


def work(channel_fd: int, images_fd: int, payloads_fd: int, scoring_fd: int, answers_fd: int) -> None:
    """Wait for the first message, build, serve."""
    import torch

    from fedfew.config.parts import network_of, sites_of
    from fedfew.config.schema import check
    from fedfew.core.environment import keep_freed_memory
    from fedfew.data.clients import ClientsData
    from fedfew.runtime.arena import Arena
    from fedfew.runtime.worker import serve

    torch.set_num_threads(1)
    keep_freed_memory()
    channel = Channel(socket.socket(fileno=channel_fd))
    hello = channel.receive()
    if hello is None:
        return
    data = ClientsData.unpack(hello["data"], Arena(images_fd).read(hello["tensors"], copy=False))
    config = check(hello["config"], allow_code=None)
    if hello["device"]:
        config = replace(config, engine=config.engine.on(hello["device"]))
    sites = sites_of(config, data, network_of(config, data))
    serve(sites, channel, Arena(payloads_fd), Arena(scoring_fd), Arena(answers_fd))


if __name__ == "__main__":
    *files, lifeline = (int(argument) for argument in sys.argv[1:])
    end_with_parent(lifeline)
    work(*files)
