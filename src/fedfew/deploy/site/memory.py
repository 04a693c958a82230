"""Clients' memories in a trial on Flower: files in the run's folder that other fleets can use."""

import secrets
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from fedfew.core.storage import write_atomically
from fedfew.deploy.site.warm_site import Memory

Memories = dict[int, dict[str, Tensor]]


def run_id(folder: Path) -> str:
    """A unique name for the run, saved in its folder: sites store their memories under it."""
    path = folder / "network-id"
    if not path.exists():
        write_atomically(path, secrets.token_hex(8).encode())
    return path.read_text().strip()


def memory_folder(folder: Path) -> Path:
    """One folder for all sites of a trial: clients keep their memory when the number of sites changes."""
    return folder / "network" / "memory"


def hand_over(folder: Path, memory: Mapping[int, Mapping[str, Tensor]]) -> None:
    """Replace the clients' memories at a trial's sites with those that another fleet saved."""
    for path in memory_folder(folder).glob(f"{run_id(folder)}-*"):
        path.unlink()
    for client, tensors in memory.items():
        Memory(memory_folder(folder), run_id(folder), client).write(0, tensors)


def left_at_sites(folder: Path, round: int) -> Memories:
    """The clients' memories when ``round`` began, for another fleet to continue; empty if Flower was not used."""
    if not memory_folder(folder).is_dir():
        return {}
    run = run_id(folder)
    clients = sorted({int(path.stem.split("-")[1]) for path in memory_folder(folder).glob(f"{run}-*.safetensors")})
    kept = {client: Memory(memory_folder(folder), run, client).before(round) for client in clients}
    return {client: tensors for client, tensors in kept.items() if tensors}
