"""A worker process that does what the greeting's ``mode`` says instead of training: dies, sleeps, talks nonsense.

It imports no torch, so that starting it costs nothing.
"""

import os
import socket
import sys
import threading
import time
from typing import Any

from fedfew.runtime.channel import Channel


def main(descriptors: list[int]) -> None:
    channel_fd, _, _, _, answers_fd, lifeline = descriptors
    threading.Thread(target=lambda: os.read(lifeline, 1) or os._exit(0), daemon=True).start()
    channel = Channel(socket.socket(fileno=channel_fd))
    hello = channel.receive() or {}
    mode = hello["mode"]
    if mode == "dies at once":
        sys.stderr.write("Cannot allocate memory\n")
        sys.exit(3)
    channel.send({"kind": "ready"})
    while (job := channel.receive()) is not None:
        if job["kind"] == "score":
            channel.send({"kind": "score", "scores": {"accuracy": 0.25, "loss": 1.0, "validation": None}})
        elif mode == "dies at work":
            sys.stderr.write("killed in the midst of it\n")
            os._exit(1)
        elif mode == "sleeps" and job["client"] in hello["sleepers"]:
            time.sleep(3600)
        elif mode == "talks nonsense" and job["client"] == 0:
            channel.end.sendall(b"neither JSON nor anything else\n")
        else:
            channel.send(_answer(mode, job, answers_fd))


def _answer(mode: str, job: dict[str, Any], answers: int) -> dict[str, Any]:
    index: dict[str, list[Any]] = {}
    if mode == "claims too much" and job["client"] == 0:
        os.ftruncate(answers, 1 << 34)  # 16 GB without a byte of memory
        index = {"psi": [0, [1 << 32], "float32"]}
    elif mode == "claims what is not there" and job["client"] == 0:
        index = {"psi": [1 << 20, [4], "float32"]}
    elif mode == "claims an odd place" and job["client"] == 0:
        index = {"psi": [-8, [4], "load"]}
    return {
        "kind": "update",
        "client": job["client"],
        "tensors": {"reply": index, "memory": {}},
        "examples": 1,
        "metrics": {},
    }


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]])
