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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.core.memory import keep_freed_memory
from fedfew.core.storage import digest, drop_temporaries, write_atomically
from fedfew.data.cache import cache_folder
from fedfew.data.federation import Federation, Origin
from fedfew.data.samples import Vectors
from fedfew.models.backbones.pretrained import ENLARGED, LENGTH, Pretrained

VERSION = 1
"""Increased when the same image would give other features."""
BLOCK, BATCH = 480, 48
"""Images in a file of the cache, and in one pass through the backbone."""
Report = Callable[[int, int], None]
"""Called with the number of images done and the total."""


def with_features(
    federation: Federation, model: Pretrained, workers: int, device: torch.device, report: Report | None = None
) -> Federation:
    """The federation with features N×V×d (float16) in place of the images."""
    flips = bool(federation.about["flips"])
    features = extract(model, [samples.data for samples in federation.sets], flips, workers, device, report)
    mark = digest(f"{federation.fingerprint()} {_settings(model, flips)}".encode())
    origin = Origin(federation.about, mark, model.about())
    return replace(federation.with_sets([Vectors(part) for part in features]), origin=origin)


def extract(
    model: Pretrained,
    sets: Sequence[Tensor],
    flips: bool,
    workers: int = 1,
    device: torch.device | None = None,
    report: Report | None = None,
) -> list[Tensor]:
    """Features of each set of uint8 images: from the cache if it has them, otherwise computed and stored."""
    keys = [key for images in sets for key in _keys(images)]
    places: dict[bytes, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    out = torch.empty(len(keys), model.views, model.width, dtype=torch.float16)
    store = Store(cache_folder() / "features" / digest(_settings(model, flips).encode())[:24])

    def find() -> None:
        for block, features in store.blocks(places, tuple(out.shape[1:])):
            for row, key in enumerate(block):
                if key in places:
                    out[places.pop(key)] = features[row]

    find()
    if places:  # a process that has all it needs does not wait
        with store.held():
            find()
            work = _Work(model, sets, places, flips, device or torch.device("cpu"), report)
            for block, features in work.run(workers):
                store.add(block, features)
                for row, key in enumerate(block):
                    out[places[key]] = features[row]
    return list(out.split([len(images) for images in sets]))


def _settings(model: Pretrained, flips: bool) -> str:
    """Everything features depend on besides the image."""
    views = [model.views, flips, ENLARGED] if model.views > 1 else [1]
    kind = "trunk" if model.trained == "last" else "features"
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

    def blocks(self, wanted: dict[bytes, list[int]], shape: tuple[int, ...]) -> Iterator[tuple[list[bytes], Tensor]]:
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

    def add(self, keys: list[bytes], features: Tensor) -> None:
        """Store a block, if the disk allows it."""
        rows = torch.from_numpy(np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 16).copy())
        seal = _seal(keys, features)
        content = save({"keys": rows, "features": features}, metadata={"sha256": seal})
        with contextlib.suppress(FedfewError):
            write_atomically(self.folder / f"{seal[:24]}.safetensors", content)


def _seal(keys: list[bytes], features: Tensor) -> str:
    seen = hashlib.sha256(b"".join(keys))
    seen.update(features.contiguous().numpy().data)
    return seen.hexdigest()


class _Work:
    """Computes the missing features, block by block, on several threads."""

    def __init__(
        self,
        model: Pretrained,
        sets: Sequence[Tensor],
        places: dict[bytes, list[int]],
        flips: bool,
        device: torch.device,
        report: Report | None,
    ) -> None:
        self._model, self._sets, self._flips, self._device = model.to(device).eval(), sets, flips, device
        self._offsets = np.cumsum([0, *map(len, sets)])
        self._places, self._report = places, report
        self._done, self._lock, self._stop = 0, threading.Lock(), threading.Event()

    def run(self, workers: int) -> Iterator[tuple[list[bytes], Tensor]]:
        """The blocks as they are done. Leaving early stops the threads within one batch."""
        keys = list(self._places)
        blocks = [keys[i : i + BLOCK] for i in range(0, len(keys), BLOCK)]
        count = workers if self._device.type == "cpu" else 1
        threads = torch.get_num_threads()
        keep_freed_memory()
        torch.set_num_threads(1)
        with ThreadPoolExecutor(max(min(count, len(blocks)), 1)) as pool:
            try:
                for future in as_completed([pool.submit(self._block, block) for block in blocks]):
                    yield future.result()
            finally:
                self._stop.set()
                pool.shutdown(cancel_futures=True)
                torch.set_num_threads(threads)

    def _block(self, keys: list[bytes]) -> tuple[list[bytes], Tensor]:
        parts = []
        with torch.inference_mode():
            for start in range(0, len(keys), BATCH):
                if self._stop.is_set():
                    raise InterruptedError("the extraction was cancelled")
                batch = keys[start : start + BATCH]
                parts.append(self._batch(batch))
                self._report_progress(len(batch))
        return keys, torch.cat(parts)

    def _batch(self, keys: list[bytes]) -> Tensor:
        """A short batch is padded: kernels are chosen by a batch's length, and bits should not depend on it."""
        filled = [*keys, *[keys[0]] * (BATCH - len(keys))]
        images = torch.stack([self._image(key) for key in filled]).to(self._device)
        rows = torch.from_numpy(np.frombuffer(b"".join(filled), np.uint8).reshape(-1, 16).copy())
        return self._model.features(images, rows, self._flips)[: len(keys)].to("cpu", torch.float16)

    def _image(self, key: bytes) -> Tensor:
        place = self._places[key][0]
        part = int(np.searchsorted(self._offsets, place, "right")) - 1
        return self._sets[part][place - int(self._offsets[part])]

    def _report_progress(self, more: int) -> None:
        with self._lock:
            self._done += more
            if self._report is not None:
                self._report(self._done, len(self._places))
