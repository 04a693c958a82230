"""Cached features: a frozen backbone runs once for every image, and the site caches the result.

The cache holds blocks of features with the keys of their images, so it does not matter in which order, split or
federation an image is seen again; blocks are written atomically, and damaged ones are computed again.
Threads share the cores: convolutions run outside the interpreter's lock, so there is one copy of the backbone.
"""

import contextlib
import fcntl
import hashlib
import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedfew.core.engine import CPU
from fedfew.core.environment import keep_freed_memory
from fedfew.core.errors import FedfewError
from fedfew.core.storage import digest, drop_temporaries, write_atomically
from fedfew.core.types import Report
from fedfew.data.cache import cache_folder
from fedfew.data.clients import D, Origin
from fedfew.data.samples import Images, Vectors
from fedfew.data.samples.scans import CHANGES, scanned
from fedfew.data.samples.texts import Texts
from fedfew.models.backbones.pretrained import LENGTH, Pretrained

VERSION = 1
"""Increased when the same image would give other features."""
DISPLACED = 40
"""Images, at most, whose displacements are averaged."""
BLOCK, BATCH = 480, 48
"""Images in a file of the cache, and in one pass through the backbone."""
Block = tuple[list[bytes], Tensor]
"""The keys of images, and their features."""


def with_features(
    data: D,
    model: Pretrained,
    workers: int,
    device: torch.device,
    report: Report | None = None,
    displaced: bool = False,
    named: bool = False,
) -> D:
    """The data with features N×V×d (float16) in place of the images, from the cache or computed on so many threads.

    The server's have their ``displacements``, and what the backbone knows of the classes' names, if asked.
    """
    images = {name: samples for name, samples in data.sets.items() if isinstance(samples, Images | Texts)}
    features = extract(model, list(images.values()), workers, device, report)
    fingerprint = digest(f"{data.fingerprint()} {_settings(model, images['samples'])}".encode())
    sets = dict(zip(images, map(Vectors, features), strict=True))
    own = images.get("server")
    if displaced and isinstance(own, Images) and len(own):
        sets["server"] = replace(sets["server"], moved=displacements(model, own, workers, device))
    if named and own is not None:
        sets["server"] = replace(sets["server"], names=model.named(data.classes))
    made = data.with_sets(sets)
    return replace(made, origin=Origin(data.about, fingerprint, model.about(), model.classifier))


def displacements(model: Pretrained, images: Images, workers: int, device: torch.device) -> Tensor:
    """How far each of ``CHANGES`` moves the features of these images on average (S×d); of many images, some."""
    some = images.like(images.data[:: -(-len(images) // DISPLACED)])
    sets = [some, *(some.like(scanned(some.data, change)) for change in CHANGES)]
    plain, *others = (features[:, 0].double().mean(0) for features in extract(model, sets, workers, device))
    return (torch.stack(others) - plain).float()


def extract(
    model: Pretrained,
    sets: Sequence[Images | Texts],
    workers: int = 1,
    device: torch.device = CPU,
    report: Report | None = None,
) -> list[Tensor]:
    """Features of each set of images: from the cache if it has them, otherwise computed and stored."""
    keys = [key for images in sets for key in _keys(images.data)]
    rows: dict[bytes, list[int]] = {}
    for row, key in enumerate(keys):
        rows.setdefault(key, []).append(row)
    out = torch.empty(len(keys), model.views, model.width, dtype=torch.float16)
    store = Store(cache_folder() / "features" / digest(_settings(model, sets[0]).encode())[:24])

    def fill(blocks: Iterable[Block]) -> None:
        for block, features in blocks:
            for key, feature in zip(block, features, strict=True):
                if key in rows:
                    out[rows.pop(key)] = feature

    fill(store.blocks(rows, tuple(out.shape[1:])))
    if rows:  # a process that has all it needs does not wait
        with store.held():
            fill(store.blocks(rows, tuple(out.shape[1:])))
            pictures = (image for images in sets for image in images.data)
            missing = {key: image for key, image in zip(keys, pictures, strict=True) if key in rows}
            if isinstance(sets[0], Texts):  # texts of one length go together, so that little is filled up
                missing = dict(sorted(missing.items(), key=lambda item: int(item[1].count_nonzero())))
            fill(map(store.add, _computed(model, sets[0], missing, workers, device, report)))
    return list(out.split([len(images) for images in sets]))


def _settings(model: Pretrained, images: Images | Texts) -> str:
    """Everything features depend on besides the image."""
    kind = "trunk" if model.trained == "last" else "features"
    views = images.crop_settings(model.views)
    return json.dumps([VERSION, kind, model.hash, asdict(model.preprocess), LENGTH, views])


def _keys(images: Tensor) -> Iterator[bytes]:
    """A unique key of 16 bytes for each image."""
    shape = hashlib.blake2b(str(tuple(images.shape[1:])).encode(), digest_size=16).digest()
    for image in np.ascontiguousarray(images.numpy()):
        yield hashlib.blake2b(image.data, digest_size=16, person=shape).digest()


@dataclass(frozen=True)
class Store:
    """The blocks of one backbone with one preprocessing."""

    folder: Path

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder: a second process waits, then finds the first one's results."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = (self.folder / "lock").open("w")
        except OSError:
            yield  # if the cache cannot be written, features are only computed again the next time
            return
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            drop_temporaries(self.folder)
            yield

    def blocks(self, wanted: Mapping[bytes, object], shape: tuple[int, ...]) -> Iterator[Block]:
        """Every block with a wanted image; damaged ones are removed."""
        for path in sorted(self.folder.glob("*.safetensors")):
            try:
                with safe_open(path, framework="pt") as file:
                    keys = [bytes(row) for row in file.get_tensor("keys").numpy()]
                    if wanted.keys().isdisjoint(keys):
                        continue
                    features = file.get_tensor("features")
                    sound = file.metadata()["sha256"] == _seal(keys, features)
                if not sound or tuple(features.shape[1:]) != shape or features.dtype != torch.float16:
                    raise ValueError("not what was written")
            except (OSError, ValueError, KeyError, TypeError, SafetensorError):
                with contextlib.suppress(OSError):
                    path.unlink()
                continue
            yield keys, features

    def add(self, block: Block) -> Block:
        """Store a block, if the disk allows it, and pass it on."""
        seal = _seal(*block)
        content = save({"keys": _as_rows(block[0]), "features": block[1]}, metadata={"sha256": seal})
        with contextlib.suppress(FedfewError):
            write_atomically(self.folder / f"{seal[:24]}.safetensors", content)
        return block


def _seal(keys: list[bytes], features: Tensor) -> str:
    seen = hashlib.sha256(b"".join(keys))
    seen.update(features.contiguous().numpy().data)
    return seen.hexdigest()


def _as_rows(keys: list[bytes]) -> Tensor:
    """Keys as uint8 N×16."""
    return torch.from_numpy(np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 16).copy())


def _computed(
    model: Pretrained,
    kind: Images | Texts,
    missing: Mapping[bytes, Tensor],
    workers: int,
    device: torch.device,
    report: Report | None,
) -> Iterator[Block]:
    """The features of the missing images, block by block as they are done on several threads.

    Leaving early stops the threads within one batch.
    """
    model.to(device).eval()
    done, lock, stop = 0, threading.Lock(), threading.Event()

    def compute(keys: list[bytes]) -> Block:
        nonlocal done
        parts = []
        with torch.inference_mode():
            for batch in (keys[start : start + BATCH] for start in range(0, len(keys), BATCH)):
                if stop.is_set():
                    raise InterruptedError("the extraction was cancelled")
                # a short batch is padded: kernels are chosen by a batch's length, and bits should not depend on it
                filled = [*batch, *[batch[0]] * (BATCH - len(batch))]
                images = kind.like(torch.stack([missing[key] for key in filled]).to(device))
                features = model.features(images, _as_rows(filled))
                parts.append(features[: len(batch)].to("cpu", torch.float16))
                with lock:
                    done += len(batch)
                    if report is not None:
                        report(done, len(missing))
        return keys, torch.cat(parts)

    keys, threads = list(missing), torch.get_num_threads()
    blocks = [keys[start : start + BLOCK] for start in range(0, len(keys), BLOCK)]
    keep_freed_memory()
    torch.set_num_threads(1)
    with ThreadPoolExecutor(max(min(workers if device.type == "cpu" else 1, len(blocks)), 1)) as pool:
        try:
            for future in as_completed([pool.submit(compute, block) for block in blocks]):
                yield future.result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)
