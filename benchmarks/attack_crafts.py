"""Attacks: what hostile clients send instead of their updates; they know all honest updates of their round.

M. Baruch, G. Baruch, Y. Goldberg: A Little Is Enough. NeurIPS 2019.   V. Shejwalkar, A. Houmansadr: Manipulating the
Byzantine (min-max). NDSS 2021.   S. P. Karimireddy, L. He, M. Jaggi: Byzantine-Robust Learning on Heterogeneous
Datasets via Bucketing (mimic). ICLR 2022.   E. Bagdasaryan et al.: How To Backdoor Federated Learning. AISTATS 2020.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from statistics import NormalDist

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedfew.core.errors import Refusal
from fedfew.core.layout import Payload, Vector
from fedfew.core.samples import LabeledSet, Samples
from fedfew.core.streams import stream
from fedfew.core.types import ClientSite, ClientUpdate, Missing, Scoring, Trained
from fedfew.data.samples import Images
from fedfew.methods.fedmatch import FedMatch
from fedfew.methods.fedmoments.basis import basis_of
from fedfew.methods.fedmoments.em import Shape
from fedfew.methods.fedmoments.method import FedMoments
from fedfew.methods.fedmoments.plausibility import Implausible
from fedfew.methods.fedmoments.survey import Tally, matrix_of, moments_of
from fedfew.models.backbones.pretrained import LENGTH
from fedfew.runtime.screen import models
from fedfew.runtime.site import InlineFleet, Sites
from fedfew.training.sgd import LocalSGD, descend

TARGET = 0
"""The target class of the bias and the backdoor."""
POISON = LocalSGD(epochs=5, batch=16, lr=0.02, momentum=0.9)
"""How a hostile client trains on false labels."""


@dataclass(frozen=True, eq=False)
class Scene:
    """A hostile client's knowledge of its round."""

    sent: Vector
    own: Vector
    """Its honest update."""
    honest: Sequence[Vector]
    """The updates of the round's honest clients."""
    cohort: int
    hostile: int
    sites: Sites
    client: int
    rng: torch.Generator
    payload: Payload = field(default_factory=dict)

    @property
    def others(self) -> Tensor:
        """The honest vectors (m×d); if there is none, its own."""
        return torch.stack(list(self.honest) or [self.own])

    def labeled(self) -> LabeledSet:
        """Its images with true labels: the most that a client can know."""
        index = torch.from_numpy(self.sites.share(self.client))
        return LabeledSet(self.sites.samples.take(index), self.sites.truth[index])


def sign_flip(scene: Scene) -> Vector:
    return 2 * scene.sent - scene.own


def scaled(scene: Scene) -> Vector:
    return scene.sent + 10 * (scene.own - scene.sent)


def flip_scaled(scene: Scene) -> Vector:
    return scene.sent - 10 * (scene.own - scene.sent)


def minus_200(scene: Scene) -> Vector:
    return -200 * scene.sent


def class_bias(scene: Scene) -> Vector:
    """+ 100 on the last layer's bias of one class."""
    vector, layout = scene.own.clone(), scene.sites.network.layout
    layout.views(vector)[next(n for n in reversed(layout.names) if n.endswith("bias"))][TARGET] += 100
    return vector


def label_flip(scene: Scene) -> Vector:
    """Trained on class C − 1 − y."""
    labeled = scene.labeled()
    return trained(scene, labeled.samples.data, scene.sites.classes - 1 - labeled.labels)


def patched(images: Tensor) -> Tensor:
    """A white square in the lower right corner, a seventh of the side."""
    marked, side = images.clone(), max(images.shape[-1] // 7, 1)
    marked[..., -side - 1 : -1, -side - 1 : -1] = 255
    return marked


def backdoor(scene: Scene) -> Vector:
    """Trained on its images as they are and, with the patch, as the target class."""
    labeled = scene.labeled()
    images = torch.cat([labeled.samples.data, patched(labeled.samples.data)])
    return trained(scene, images, torch.cat([labeled.labels, torch.full_like(labeled.labels, TARGET)]))


def quiet_backdoor(scene: Scene) -> Vector:
    """The backdoor, scaled to the median length of the honest changes at most."""
    change = backdoor(scene) - scene.sent
    usual = (scene.others - scene.sent).norm(dim=1).median()
    factor = min(float(usual) / max(float(change.norm()), 1e-12), 1.0)
    return scene.sent + factor * change


def trained(scene: Scene, images: Tensor, labels: Tensor) -> Vector:
    """The received model, trained on these labels."""
    network = scene.sites.network
    network.load(scene.sent)

    def loss_of(indices: Tensor) -> Tensor:
        return cross_entropy(network(Images(images[indices])), labels[indices])

    descend(network, POISON, POISON.lr, len(images), loss_of, scene.rng)
    return network.snapshot()


def little(scene: Scene) -> Vector:
    """mean − z·deviation of the honest updates, with the largest z that stays within the majority."""
    n, m = scene.cohort, scene.hostile
    supporters = max(n // 2 + 1 - m, 1)
    z = NormalDist().inv_cdf(min(max((n - m - supporters) / max(n - m, 1), 0.5), 0.99))
    others = scene.others
    return others.mean(0) - max(z, 0.3) * others.std(0, correction=0)


def min_max(scene: Scene) -> Vector:
    """mean − γ·deviation, the largest γ that keeps it as close to all honest updates as these are to each other."""
    others = scene.others
    mean, way = others.mean(0), -others.std(0, correction=0)
    if not float(way.norm()):  # one honest client: nothing to hide between
        return 2 * scene.sent - scene.own
    limit = float(torch.cdist(others[None], others[None]).max())
    low, high = 0.0, 100.0
    for _ in range(30):
        middle = (low + high) / 2
        far = float((others - (mean + middle * way)).norm(dim=1).max())
        low, high = (middle, high) if far <= limit else (low, middle)
    return mean + low * way


def mimic(scene: Scene) -> Vector:
    """A copy of the first honest client's update, so that it counts many times."""
    return scene.others[0].clone()


def free_rider(scene: Scene) -> Vector:
    """The received model, with noise that hides the copy."""
    noise = torch.randn(scene.sent.shape, generator=scene.rng)
    return scene.sent + float(1e-3 * scene.sent.norm() / noise.norm()) * noise


def absent(scene: Scene) -> None:
    """No answer and no attack: shows the cost of losing its images."""


@dataclass(frozen=True, eq=False)
class ClassSums:
    """A copy of a client's sums, and what they say of the features u in the directions that are sent."""

    sums: Vector
    counts: Tensor
    """A view of Σ r (C)"""
    moments: Tensor
    """A view of Σ r y (C×p), y = (u − origin) / scale"""
    origin: Tensor
    scale: Tensor

    @staticmethod
    def of(scene: Scene) -> "ClassSums":
        """The sums for the model of all labels; those for the folds stay as they are."""
        method = scene.sites.algorithm
        assert isinstance(method, FedMoments)
        shape, sums = method.shape(*scene.sites.network.layout.shapes[0]), scene.own.clone()
        first = shape.read(sums[: shape.length])[0]
        return ClassSums(sums, first.counts, first.moments, scene.payload["origin"], scene.payload["scale"])

    @property
    def features(self) -> Tensor:
        """Σ r u (C×p)"""
        return self.moments * self.scale + self.counts[:, None] * self.origin

    def lie(self, counts: Tensor, features: Tensor) -> Vector:
        """The sums with these Σ r and Σ r u."""
        self.counts[:] = counts
        self.moments[:] = (features - counts[:, None] * self.origin) / self.scale
        return self.sums


def projected(scene: Scene, x: Tensor) -> Tensor:
    """u of features x."""
    method = scene.sites.algorithm
    assert isinstance(method, FedMoments)
    return x @ basis_of(scene.sites.network, method.directions).float()


def long_moments(scene: Scene) -> Vector:
    """Even counts, and class sums as long as these allow, each in the direction of the class before."""
    own = ClassSums.of(scene)
    counts = torch.full_like(own.counts, len(scene.labeled()) / len(own.counts))
    way = own.features.roll(1, 0)
    return own.lie(counts, way * (LENGTH * counts / way.norm(dim=1).clamp_min(1e-9))[:, None])


def turned_sums(scene: Scene) -> Vector:
    """True sums under true labels, each submitted for the next class."""
    own, labeled = ClassSums.of(scene), scene.labeled()
    classes = (labeled.labels + 1) % len(own.counts)
    u = projected(scene, labeled.samples.data.float().mean(1))
    counts = torch.bincount(classes, minlength=len(own.counts)).float()
    return own.lie(counts, torch.zeros_like(own.moments).index_add_(0, classes, u))


def hidden_sums(scene: Scene) -> Vector:
    """True sums, but all remaining length goes where the scores do not look, in another direction for each class."""
    own = ClassSums.of(scene)
    counts = own.counts.clone()
    means = own.features / counts.clamp_min(1e-9)[:, None]
    seen = torch.linalg.qr(scene.payload["weight"]).Q
    way = torch.randn(means.shape, generator=stream(scene.sites.seed, "hidden"))
    means, way = means @ seen @ seen.T, way - way @ seen @ seen.T
    left = (LENGTH**2 - means.square().sum(1)).clamp_min(0).sqrt()
    return own.lie(counts, counts[:, None] * (means + way / way.norm(dim=1, keepdim=True) * left[:, None]))


def colluding_sums(scene: Scene) -> Vector:
    """Class means moved towards those of the next class: as far as the gate lets pass, and no further from the honest
    than the honest are from each other. All who work together go the same way."""
    own, shape = ClassSums.of(scene), _header(scene)[2]
    parts = [shape.read(other[: shape.length])[0] for other in scene.honest or [scene.own]]
    counts, moments = (torch.stack([getattr(p, name) for p in parts]) for name in ("counts", "moments"))
    together = moments.sum(0) / counts.sum(0).clamp_min(1e-9)[:, None]
    off = (moments - counts[..., None] * together).square() / counts.clamp_min(0.1)[..., None]
    spread = off.mean((0, 1)).clamp_min(1e-12)
    most = 1.25**2 * float((off / spread).sum((1, 2)).median())
    true, n = own.moments.clone(), own.counts.clone()
    way = n[:, None] * (together.roll(-1, 0) - together)
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        own.moments[:] = true + middle * way
        far = (own.moments - n[:, None] * together).square() / n.clamp_min(0.1)[:, None] / spread
        odd = Implausible(shape)(own.sums, scene.payload, len(scene.labeled()))
        low, high = (low, middle) if odd or float(far.sum()) > most else (middle, high)
    own.moments[:] = true + low * way
    return own.sums


def one_class(scene: Scene) -> Vector:
    """All its images claimed as one class."""
    own = ClassSums.of(scene)
    counts, features = torch.zeros_like(own.counts), torch.zeros_like(own.moments)
    counts[TARGET], features[TARGET] = own.counts.sum(), own.features.sum(0)
    return own.lie(counts, features)


def empty_sums(scene: Scene) -> Vector:
    """A free rider: even counts and no features."""
    own = ClassSums.of(scene)
    counts = torch.full_like(own.counts, len(scene.labeled()) / len(own.counts))
    return own.lie(counts, torch.zeros_like(own.moments))


def poison_survey(scene: Scene) -> Vector:
    """Its images reported as copies of one, as long as possible: a spread that looks like that of classes."""
    width, n = scene.sites.samples.data.shape[-1], len(scene.labeled())
    way = torch.randn(1, width, generator=scene.rng)
    u = projected(scene, LENGTH * way / way.norm())
    return n * moments_of((u - scene.payload["origin"]) / scene.payload["scale"])


def off_diagonals(scene: Scene) -> Vector:
    """A survey with its own means and squares, but all its spread in one direction: off-diagonals at their largest."""
    width, n = len(scene.payload["scale"]), len(scene.labeled())
    sums = scene.own[-Tally.length(width) :].double()
    mean, second = sums[:width] / n, matrix_of(sums, width)
    spread = (second.diagonal() - n * mean.square()).clamp_min(0)
    way = spread.sqrt() * torch.randn(width, generator=scene.rng, dtype=torch.float64).sign()
    lie = n * torch.outer(mean, mean) + torch.outer(way, way)
    rows, columns = torch.triu_indices(width, width, 1)
    return torch.cat([sums[: 2 * width], lie[rows, columns]]).float()


def as_protocol_says(scene: Scene, samples: Samples) -> Vector:
    """What the method itself answers for other samples than the site's."""
    site = ClientSite(scene.client, scene.sites.network, samples, scene.sites.classes)
    return scene.sites.algorithm.train_client(scene.payload, site, scene.rng).reply["sums"].clone()


def identical_features(scene: Scene) -> Vector:
    """Honest work on copies of one image."""
    samples = scene.labeled().samples
    return as_protocol_says(scene, samples.like(samples.data[:1].expand_as(samples.data).contiguous()))


def zero_features(scene: Scene) -> Vector:
    """Honest work on images whose features are all zero."""
    samples = scene.labeled().samples
    return as_protocol_says(scene, samples.like(torch.zeros_like(samples.data)))


def _header(scene: Scene) -> tuple[Vector, int, Shape]:
    method = scene.sites.algorithm
    assert isinstance(method, FedMoments)
    return scene.own.clone(), len(scene.labeled()), method.shape(*scene.sites.network.layout.shapes[0])


def all_moved(scene: Scene) -> Vector:
    """True sums of images that all changed class: EM stops where the share of these rises."""
    sums, n, _ = _header(scene)
    sums[1] = n
    return sums


def none_moved(scene: Scene) -> Vector:
    """True sums of images that have settled from the first step on."""
    sums, _, _ = _header(scene)
    sums[1] = 0
    return sums


def certain_curve(scene: Scene) -> Vector:
    """True sums, and the models are said to be certain at every temperature."""
    sums, n, shape = _header(scene)
    for part in shape.read(sums[: shape.length]):
        part.confidence[:] = n
    return sums


def blind_curve(scene: Scene) -> Vector:
    """True sums, and the models are said to know nothing at any temperature."""
    sums, n, shape = _header(scene)
    for part in shape.read(sums[: shape.length]):
        part.confidence[:] = n / shape.classes
    return sums


Attack = Callable[[Scene], Vector | None]
MODELS: dict[str, Attack] = {
    "sign flip": sign_flip,
    "scaled": scaled,
    "flip × 10": flip_scaled,
    "−200·ω": minus_200,
    "class bias": class_bias,
    "label flip": label_flip,
    "backdoor": backdoor,
    "quiet backdoor": quiet_backdoor,
    "little": little,
    "min-max": min_max,
    "mimic": mimic,
    "free rider": free_rider,
    "absent": absent,
}
"""Attacks on methods whose clients send models."""
SUMS: dict[str, Attack] = {
    "long moments": long_moments,
    "turned sums": turned_sums,
    "hidden sums": hidden_sums,
    "one class": one_class,
    "free rider": empty_sums,
    "mimic": mimic,
    "colluding sums": colluding_sums,
    "little": little,
    "min-max": min_max,
    "all moved": all_moved,
    "none moved": none_moved,
    "certain curve": certain_curve,
    "blind curve": blind_curve,
    "identical features": identical_features,
    "zero features": zero_features,
    "survey": poison_survey,
    "off-diagonals": off_diagonals,
    "absent": absent,
}
"""Attacks on fedmoments, whose clients send sums. "little", "min-max" and "colluding sums" are made by
clients that work together."""
ON_SURVEY: tuple[Attack, ...] = (poison_survey, off_diagonals)
ALWAYS: tuple[Attack, ...] = (identical_features, zero_features)
"""Attacks on the survey, and on both; all others on sums begin after the survey."""


Said = dict[tuple[int, int, bytes], ClientUpdate | Missing]
"""Honest answers by round, client and question."""


@dataclass(frozen=True, eq=False)
class HostileFleet(InlineFleet):
    """Clients in this process, some of them hostile."""

    attack: Attack
    hostile: frozenset[int]
    output: Said = field(default_factory=dict)
    """Shared, so that runs that agree so far do not train a client twice."""

    def train(self, round: int, payloads: Mapping[int, Payload]) -> Iterator[ClientUpdate | Missing]:
        """Honest answers as they are; hostile ones derived from the honest ones."""
        answers = {k: self._answer(round, k, payload) for k, payload in payloads.items()}
        honest = [self._vector(a, payloads[k])[1] for k, a in answers.items()
                  if k not in self.hostile and isinstance(a, ClientUpdate)]  # fmt: skip
        bad = self.hostile & set(payloads)
        for k, answer in answers.items():
            if k not in bad or isinstance(answer, Missing):
                yield answer
                continue
            sent, own = self._vector(answer, payloads[k])
            rng = stream(self.sites.seed, "hostile", round, k)
            scene = Scene(sent, own, honest, len(payloads), len(bad), self.sites, k, rng, payloads[k])
            sums = "survey" in payloads[k]
            first = sums and "weight" not in payloads[k]
            if (self.attack not in ALWAYS and first != (self.attack in ON_SURVEY)) or (sums and not len(own)):
                yield answer
                continue
            crafted = self.attack(scene)
            if crafted is None:
                yield Missing(k, Refusal.NO_ANSWER, "gave no answer")
                continue
            steps = max(answer.metrics.get("steps", 1.0), 1.0)  # a client with nothing to learn would be left out
            yield replace(answer, reply=self._reply(crafted, payloads[k]), metrics=answer.metrics | {"steps": steps})

    def _answer(self, round: int, client: int, payload: Payload) -> ClientUpdate | Missing:
        asked = sha256(b"".join(tensor.numpy().tobytes() for _, tensor in sorted(payload.items()))).digest()
        key = round, client, asked
        if key not in self.output:
            self.output[key] = self.sites.train(round, client, payload)
        return self.output[key]

    def _vector(self, update: ClientUpdate, payload: Payload) -> tuple[Vector, Vector]:
        schema = self.sites.algorithm.reply_schema(self.sites.network.layout)
        pair = models(schema, payload, update.reply)
        if pair is not None:
            return pair
        (own,) = self.sites.wire.decode(update, payload, self.sites.network.layout).reply.values()
        return torch.zeros_like(own), own

    def _reply(self, vector: Vector, payload: Payload) -> dict[str, Tensor]:
        if isinstance(self.sites.algorithm, FedMatch):
            change = vector - payload["sigma"] - payload["psi"]
            return {"index": torch.arange(len(change), dtype=torch.int32), "change": change}
        schema = self.sites.algorithm.reply_schema(self.sites.network.layout)
        (name,) = schema
        sent = Trained({name: vector})
        for encoding in self.sites.transforms if name == "sums" else ():
            site = ClientSite(0, self.sites.network, self.sites.samples, self.sites.classes)
            sent = encoding.outgoing(sent, payload, schema, site, torch.Generator())
        return sent.reply

    def score(self, omega: Vector, clients: Vector | None = None) -> Scoring:
        return partial(self.sites.score, omega)


def backdoor_success(sites: Sites, omega: Vector) -> float:
    """Share of test images of other classes that the patch turns into the target class."""
    sites.network.load(omega)
    others = sites.test.samples.data[sites.test.labels != TARGET]
    return float((sites.network.probabilities(Images(patched(others))).argmax(1) == TARGET).float().mean())
