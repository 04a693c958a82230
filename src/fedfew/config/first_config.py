"""A first config for a folder of your own images, which are not decoded; a comment explains every choice."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from fedfew.core.errors import FedfewError
from fedfew.core.extras import installed
from fedfew.data.dataset import Unreadable, shown
from fedfew.data.images.decode import decode, probe, read_file
from fedfew.data.images.folders import LAYOUT, Survey

LOOKED_AT = 200
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


@dataclass(frozen=True)
class Choice:
    """The settings that a folder suggests."""

    size: int
    channels: int
    participation: float
    warmup: int
    server_epochs: int
    server_batch: int
    client_batch: int
    model: str
    validation: int
    folds: int
    """Folds of cross-validation without test images: as many as the smallest class has labels, up to five."""
    why_size: str
    why_channels: str
    backbone: bool
    """Whether a pretrained backbone suits these images better than training from few labels."""
    seen: int
    """Pixels a side of the backbone's input."""
    why_seen: str


def choose(survey: Survey, network: bool = False) -> Choice:
    """Settings that suit a folder, from the headers of some of its images and from their numbers.

    In a ``network`` the sites' images are elsewhere, and nothing is known about them.
    """
    counts = {part: [p for p in survey.files if p.part == part] for part in ("server", "clients", "test")}
    if not counts["server"]:
        raise FedfewError("E206", shown(survey.root), "there are no files in server/<class>/", LAYOUT)
    if not counts["clients"] and not network:
        remedy = f"{LAYOUT}; add --network if the sites' images are on other machines"
        raise FedfewError("E206", shown(survey.root), "there are no files in clients/<site>/", remedy)
    sides, color = _look(survey)
    middle = median(sides)
    backbone = color and middle >= SMALLEST_PHOTOGRAPH and installed("pretrained")
    size = max([s for s in (SIZES + SEEN if backbone else SIZES) if s <= middle], default=SIZES[0])
    seen, minutes = _seen(0 if network else len(survey.files))
    sites = 0 if network else len(survey.groups["clients"])
    asked = min(sites, 10)
    smallest = min((sum(p.group == site for p in counts["clients"]) for site in survey.groups["clients"]), default=16)
    batch = _batch(len(counts["server"]) // 4)
    steps = -(-len(counts["server"]) // batch)  # in an epoch of the server
    return Choice(
        size=size,
        channels=3 if color else 1,
        participation=1.0 if backbone or sites <= 10 else round(asked / sites, 3),
        warmup=max(20, min(300, 6000 // steps)),
        server_epochs=max(2, min(40, 200 // steps)),
        server_batch=batch,
        client_batch=min(16, _batch(smallest)),
        model='name = "cnn"               # small, for small images' if size <= 32 else
        'name = "resnet9"\nwidth = 16                 # 64 is the paper\'s; 16 trains on a CPU\nnorm = "group"',
        validation=len(counts["test"]) // 4,
        folds=0 if counts["test"] else min(FOLDS, *Counter(p.group for p in counts["server"]).values()),
        why_size=f"the images' shorter side is {int(middle)} pixels in the median",
        why_channels="the images have color" if color else "the images are grey",
        backbone=backbone,
        seen=seen,
        why_seen="pixels a side it sees; each site computes its own features, once" if network else
        f"pixels a side it sees: {minutes:.1f} minutes of one core for all {len(survey.files):,} images, once",
    )  # fmt: skip


def _look(survey: Survey) -> tuple[list[int], bool]:
    """Shorter sides, and whether any image has color; a file that stores grey as RGB is grey."""
    step = max(1, len(survey.files) // LOOKED_AT)
    sides, color = [], False
    for place in survey.files[::step]:
        try:
            content = read_file(survey.root / place.path)
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


def _seen(images: int) -> tuple[int, float]:
    """The largest size at which the features of so many images cost no more than ``BUDGET``, and the minutes."""
    cost = {side: images * SECONDS * (side / SEEN[0]) ** 2 for side in SEEN}
    side = max([s for s in SEEN if cost[s] <= BUDGET], default=SEEN[0])
    return side, cost[side] / 60


def _batch(images: int) -> int:
    return max([b for b in BATCHES if b <= images], default=BATCHES[0])


def first_config(survey: Survey, choice: Choice, out: Path, network: bool = False) -> str:
    """The TOML text, with a path relative to where the file will be."""
    folder, classes = survey.root, survey.groups["server"]
    sites = "sites on other machines" if network else f"{len(survey.groups['clients'])} sites"
    steps = "\n".join(f"# then:  {line}" for line in next_steps(Path(out.name), network))
    of_sites = "the sites" if network else f"the {sites}"
    labels = sum(place.part == "server" for place in survey.files)
    tested = sum(place.part == "test" for place in survey.files)
    path = "." if out.parent.resolve() == folder.resolve() else str(folder.resolve())
    validation = (
        f"validation = {choice.validation:<13} # images of test/ held out to choose the best round by"
        if choice.validation
        else "validation = 0             # there is no test/ folder, so nothing can be held out of it"
    )
    return f"""\
# Training on the images of a folder: {len(classes)} classes, {labels} labeled files at the server, {sites}
{steps}
seed = 0                   # the same seed gives the same model, bit by bit
rounds = {20 if choice.backbone else 30}                # more is better up to a point: see `fedfew watch`
participation = {choice.participation:<10} # share of {of_sites} selected in each round

[dataset]
name = "folder"            # server/<class>/, clients/<site>/, test/<class>/
path = {json.dumps(path, ensure_ascii=False)}
size = {choice.size:<19} # {choice.why_size}; larger sees more and costs more
channels = {choice.channels:<15} # {choice.why_channels}
flips = true               # false if a mirrored image means something else (letters, left and right)
{validation}
{_on_a_backbone(choice) if choice.backbone else _from_scratch(choice, labels)}""" + (
        "" if tested else "# Without images in test/<class>/ no accuracy can be measured.\n"
    )


def _on_a_backbone(choice: Choice) -> str:
    """For photographs: features of a pretrained network, and their class moments."""
    return f"""
[model]
name = "efficientnet-lite0" # trained on ImageNet; its features are computed once, at each site
train = "head"             # the backbone stays as it is
size = {choice.seen:<19} # {choice.why_seen}

[method]
name = "fedmoments"        # this project's method for frozen backbones; server-only is the baseline

[server]                   # for methods that train the head by SGD, such as server-only
epochs = 20
batch = 20
lr = 0.1
momentum = 0.9
weight_decay = 0.0005
schedule = "cosine"
"""


def _from_scratch(choice: Choice, labels: int) -> str:
    """For other images: a small network trained from scratch."""
    return f"""normalize = "standard"     # pixels scaled to mean 0 and deviation 1

[model]
{choice.model}

[method]
name = "fedfew"            # this project's method; `fedfew methods` lists the others, server-only is the baseline
threshold = 0.9            # smallest probability of a pseudo-label that counts
steps = 20                 # EM steps that estimate each site's own class mix; 0 if all sites see the same
warmup = {choice.warmup:<17} # passes over the labeled images before the first round

[aggregator]
name = "fedfreq"
cap = 2.0                  # no site gets more than twice its equal share

[server]
epochs = {choice.server_epochs:<17} # passes over the {labels} labeled images in a round
batch = {choice.server_batch}
lr = 0.03
momentum = 0.9
schedule = "cosine"
augment = "strong"         # with few labels every image is seen in many versions

[client]
epochs = 2
batch = {choice.client_batch:<18} # many small steps learn more from the same images
lr = 0.02
momentum = 0.9
"""


def next_steps(out: Path, network: bool) -> list[str]:
    """The next commands for the config that was written."""
    place = shown(out)
    if network:
        return [f"fedfew deploy init NAME --sites A,B,C --server HOST --config {place}"]
    return [f"fedfew check {place}", f"fedfew run {place}"]
