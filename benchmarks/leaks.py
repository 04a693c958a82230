"""What a curious or malicious server can read from one answer of a site: ``python -m benchmarks.leaks [--seeds 3]``.

The package's own digits, shrunk to 14×14. Two attacks on each answer, by a server that knows 500 other images:

    membership        a score for each candidate image, half of which are the site's: AUC, and how many of the site's
                      images are named when 1 % of the others are
        models        cosine of the change and of the candidate's own gradient
        survey        yᵀ(Σyyᵀ + λ)⁻¹y, which is at most 1 for images of the site
        step of EM    Σ_c r_c (y − m_c)ᵀ S⁻¹ (Σ r y − n_c m_c), m_c and S of the known images
    reconstruction    cosine of the nearest of the site's images (less the mean of all) to a vector taken from the
                      answer: Δw_c/Δb_c of a linear head, eigenvectors of the survey's second moment, class sums

Heads are trained for one epoch on a site's own predictions, with pixels as features; networks by the methods' own code,
after two rounds of a federation. fedmoments gets features of 196 numbers, of which it sends 59 directions (as many as
384 of 1,280). The malicious server sends a linear head with zero weights, so that the update is a sum of raw features;
to clients of fedmoments it sends scores whose classes differ by the images of a narrow slab: the difference of two sums
is that of these images, be it one. Of a secure sum the server sees the total over three sites of equal size.

``--record`` puts the rows into the table of docs/understand/security.md, and into the one that dossiers quote.
"""

import argparse
import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from benchmarks.attacks import small, world
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedfew.core.samples import LabeledSet
from fedfew.core.types import ClientSite, ClientUpdate
from fedfew.data import DATASETS
from fedfew.interface.deploy.dossier import MEASURED
from fedfew.methods.fedmoments.basis import Frame
from fedfew.methods.fedmoments.bounded import Opened, step_answer, survey_sums
from fedfew.methods.fedmoments.em import ClassScores, ClassSums, Shape, client_sums, responsibilities
from fedfew.methods.fedmoments.method import SHARPEST
from fedfew.methods.fedmoments.survey import matrix_of, moments_of
from fedfew.models.backbones.pretrained import LENGTH
from fedfew.runtime.screen import models
from fedfew.transforms import epsilon
from fedfew.transforms.privacy import blurred

SIZES, BATCH, LR, DELTA = (1, 5, 20, 100, 1000), 10, 0.1, 1e-5
RIDGE = 1e-3
PAGE, BEGIN, END = Path("docs/understand/security.md"), "<!-- leaks: begin -->", "<!-- leaks: end -->"
LABELS, KNOWN = 50, 550
"""Images up to the first number have labels at the server; up to the second, the server knows them."""
DIRECTIONS, CLASSES, MODELS, STEPS = 59, 10, 5, 10
Attack = Callable[[Sequence[Tensor], Tensor], tuple[Tensor, Tensor | None, Tensor]]
"""From the indices of each site's images, and of candidates: scores, vectors that may be images, the first site's."""


def data() -> LabeledSet:
    """Digits of 14×14 pixels."""
    train = DATASETS["mini-mnist"]().train
    return LabeledSet(train.samples.like(small(train.samples.data)), train.labels)


def pixels(digits: LabeledSet) -> Tensor:
    """Standardised pixels (N×196)."""
    x = digits.samples.data.flatten(1).double()
    return (x - x.mean(0)) / x.std()


def of_head(network: nn.Module, x: Tensor) -> Attack:
    """The change of this model, trained for an epoch on its own predictions; the mean over the sites."""
    start = nn.utils.parameters_to_vector(network.parameters()).detach().clone()

    def gradient(x: Tensor) -> Tensor:
        loss = cross_entropy(network(x), network(x).argmax(1))
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(network.parameters()))])

    def change(own: Tensor) -> Tensor:
        labels = network(own).argmax(1)
        for batch, wanted in zip(own.split(BATCH), labels.split(BATCH), strict=True):
            loss = cross_entropy(network(batch), wanted)
            for p, g in zip(network.parameters(), torch.autograd.grad(loss, list(network.parameters())), strict=True):
                p.data -= LR * g
        after = nn.utils.parameters_to_vector(network.parameters()).detach() - start
        nn.utils.vector_to_parameters(start.clone(), network.parameters())
        return after

    def attack(sites: Sequence[Tensor], candidates: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        sent = torch.stack([change(x[own]) for own in sites]).mean(0)
        scores = torch.stack([-torch.cosine_similarity(gradient(one[None]), sent, 0) for one in x[candidates]])
        if not isinstance(network, nn.Linear):
            return scores, None, x[sites[0]]
        classes = network.out_features
        return scores, sent[:-classes].view(classes, -1) / sent[-classes:, None], x[sites[0]]

    return attack


def of_method(name: str, digits: LabeledSet) -> Attack:
    """A model that a client of this method sends, in the third round of a federation."""
    parts, sites, state = world(name, 0.5, 0)
    network, payload = sites.network, parts.algorithm.broadcast(state, 0)
    schema = parts.algorithm.reply_schema(network.layout)

    def reply(own: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        site = ClientSite(0, network, digits.samples.take(own), CLASSES)
        trained = sites.wire.train_client(payload, site, torch.Generator().manual_seed(seed))
        update = sites.wire.decode(ClientUpdate(0, trained.reply, len(own)), payload, network.layout)
        pair = models(schema, payload, update.reply)
        assert pair is not None
        return pair

    def gradient(index: int) -> Tensor:
        network.gradient.zero_()
        logits = network(digits.samples.take(torch.tensor([index])))
        cross_entropy(logits, logits.argmax(1)).backward()
        return network.gradient.clone()

    def attack(own: Sequence[Tensor], candidates: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        both = [reply(one, k) for k, one in enumerate(own)]
        change = torch.stack([after - before for before, after in both]).mean(0)
        network.load(both[0][0])
        network.set_training(False)
        scores = torch.stack([-torch.cosine_similarity(gradient(int(i)), change, 0) for i in candidates])
        return scores, None, torch.zeros(1, 1)

    return attack


@dataclass(frozen=True, eq=False)
class Moments:
    """Clients of fedmoments, and what a server takes from their sums."""

    v: Tensor
    y: Tensor
    models: list[ClassScores]
    """Fitted to the labels, as the server would."""
    noise: float = 0.0
    fewest: int = 5

    @staticmethod
    def of(x: Tensor, labels: Tensor, noise: float = 0.0, fewest: int = 5) -> "Moments":
        basis = torch.linalg.qr(torch.randn(x.shape[1], DIRECTIONS, dtype=x.dtype)).Q
        u = (LENGTH * x / x.norm(dim=1, keepdim=True).clamp_min(1e-9)) @ basis
        frame = Frame.of(u[:LABELS], even=noise > 0)
        y = frame.bounded(u)
        v, head = y * frame.scale, nn.Linear(DIRECTIONS, CLASSES).double()
        fitted(head, v, labels)
        mix = torch.full((CLASSES,), 1 / CLASSES, dtype=x.dtype)
        score = ClassScores(head.weight.detach().T, head.bias.detach(), 1.0, 5.0, mix)
        return Moments(v, y, [score] * MODELS, noise, fewest)

    @property
    def shape(self) -> Shape:
        return Shape(CLASSES, DIRECTIONS, MODELS - 1, DIRECTIONS)

    def survey(self, sites: Sequence[Tensor], candidates: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """The attack on the survey."""
        if self.noise:
            sums = sum(self._opened(blurred(survey_sums(self.y[own]), self.noise), None) for own in sites)
        else:
            sums = sum(moments_of(self.y[own]) for own in sites)
        assert isinstance(sums, Tensor)
        values, vectors = torch.linalg.eigh(matrix_of(sums, DIRECTIONS))
        values = values.clamp_min(0) + RIDGE * values[-1].abs()
        inside = ((self.y[candidates] @ vectors).square() / values).sum(1)
        guesses = torch.cat([sums[None, :DIRECTIONS], vectors.T[-min(len(sites[0]), DIRECTIONS) :]])
        return -inside, guesses, self.y[sites[0]]

    def step(self, sites: Sequence[Tensor], candidates: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """The attack on a step of EM."""
        first, total = self.models[0], torch.stack([self._step(own, self.models) for own in sites]).sum(0)
        sums = self.shape.read(total)[0]
        mix = (sums.counts.clamp_min(0) + first.alpha * first.mix) / (float(sums.counts.clamp_min(0).sum()) + 5.0)
        known, y = self.y[LABELS:KNOWN], self.y[candidates]
        r = responsibilities(first(self.v[LABELS:KNOWN]), first.alpha, first.mix, STEPS)
        means = r.T @ known / r.sum(0)[:, None].clamp_min(1e-9)
        within = known.T @ known / len(known) - means.T @ (means * r.mean(0)[:, None])
        whiten = torch.linalg.inv(within + RIDGE * torch.eye(DIRECTIONS, dtype=y.dtype))
        off = (sums.moments - sums.counts[:, None] * means) @ whiten
        own = first(self.v[candidates]).softmax(1) * mix
        own = own / own.sum(1, keepdim=True)
        scores = (own * (y @ off.T - (means * off).sum(1))).sum(1)
        return scores, sums.moments, self.y[sites[0]]

    def slabs(self, sites: Sequence[Tensor], candidates: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """A malicious server's step: two classes divided just before and just after each candidate, along a direction
        in which half of the images lie before it; to find unknown images, at five heights along one direction."""
        ways = torch.randn(200, DIRECTIONS, dtype=self.y.dtype)
        ways = ways / ways.norm(dim=1, keepdim=True)
        middle = (self.y[LABELS:KNOWN] @ ways.T).median(0).values
        scores = []
        for y in self.y[candidates]:
            way = ways[(ways @ y - middle).abs().argmin()]
            heights = float(y @ way) + torch.tensor([-0.005, 0.005, 0.0, 0.0, 0.0])
            before, after, *_ = self._divided(sites, way, heights)
            scores.append((before.moments[0] - after.moments[0]) @ y / y.square().sum())
        way, span = ways[0], torch.linspace(0.48, 0.52, MODELS, dtype=self.y.dtype)
        sums = self._divided(sites, way, (self.y[LABELS:KNOWN] @ way).quantile(span))
        guesses = torch.stack([a.moments[0] - b.moments[0] for a, b in pairwise(sums)])
        return torch.stack(scores), guesses, self.y[sites[0]]

    def _divided(self, sites: Sequence[Tensor], way: Tensor, heights: Tensor) -> list[ClassSums]:
        """The sums by models whose first class begins at each of these heights; the other classes share the rest."""
        weight = torch.zeros(DIRECTIONS, CLASSES, dtype=self.y.dtype)
        weight[:, 0] = 0.9 * SHARPEST * way
        even = torch.full((CLASSES,), 1 / CLASSES, dtype=self.y.dtype)
        biases = [torch.zeros(CLASSES, dtype=self.y.dtype) for _ in heights]
        for bias, height in zip(biases, heights.tolist(), strict=True):
            bias[0] = -0.9 * SHARPEST * height
        models = [ClassScores(weight, bias, 1.0, 1e9, even) for bias in biases]
        return self.shape.read(torch.stack([self._step(own, models, self.y) for own in sites]).sum(0))

    def _step(self, own: Tensor, models: list[ClassScores], scored: Tensor | None = None) -> Tensor:
        v, y = (self.v if scored is None else scored)[own], self.y[own]
        if self.noise:
            return self._opened(blurred(step_answer(v, y, models, self.noise), self.noise), 0)
        return client_sums(v, y, models, models[0], 0.0, STEPS, self.fewest)[0].double()

    def _opened(self, sums: Tensor, step: int | None) -> Tensor:
        """Noisy sums as the server reads them; as nothing, where it would not count them."""
        update = Opened(self.shape, self.noise)([ClientUpdate(0, {"sums": sums}, 1)], step)
        size = self.shape.length if step is not None else DIRECTIONS + DIRECTIONS * (DIRECTIONS + 1) // 2
        return update[0].reply["sums"].double() if update else torch.zeros(size, dtype=torch.float64)


def fitted(head: nn.Module, x: Tensor, labels: Tensor) -> nn.Module:
    """The model, trained on the server's labels."""
    descent = torch.optim.SGD(head.parameters(), lr=0.1)
    for _ in range(100):
        descent.zero_grad()
        cross_entropy(head(x[:LABELS]), labels[:LABELS]).backward()
        descent.step()
    return head


def attacks(digits: LabeledSet) -> Iterator[tuple[str, int, Attack]]:
    """Each with its name and the number of sites that are added up."""
    x, labels = pixels(digits), digits.labels
    width = x.shape[1]
    head = of_head(fitted(nn.Linear(width, CLASSES).double(), x, labels), x)
    yield "linear head", 1, head
    yield "linear head, secure sums", SITES, head
    zero = nn.Linear(width, CLASSES).double()
    for p in zero.parameters():
        p.data.zero_()
    yield "linear head, malicious server", 1, of_head(zero, x)
    yield "linear head, malicious server, secure sums", SITES, of_head(zero, x)
    for name in ("fedmix", "fedfew", "fedmatch", "semifl"):
        yield f"{name}, small network", 1, of_method(name, digits)
    yield "fedmix, small network, secure sums", SITES, of_method("fedmix", digits)
    open_, free = Moments.of(x, labels), Moments.of(x, labels, fewest=0)
    yield "fedmoments, survey", 1, open_.survey
    yield "fedmoments, survey, secure sums", SITES, open_.survey
    yield "fedmoments, step of EM, classes of few images not withheld", 1, free.step
    yield "fedmoments, step of EM", 1, open_.step
    yield "fedmoments, step of EM, secure sums", SITES, open_.step
    yield "fedmoments, step of EM, malicious server", 1, open_.slabs
    yield "fedmoments, step of EM, malicious server, secure sums", SITES, open_.slabs
    for z in (1.2, 7.5):
        noisy, name = Moments.of(x, labels, z), f"noise {z:g} (ε = {epsilon({2 * z: 4}, DELTA):.1f} with 3 steps)"
        yield f"fedmoments, survey, {name}", 1, noisy.survey
        yield f"fedmoments, step of EM, {name}", 1, noisy.step
        yield f"fedmoments, step of EM, malicious server, {name}", 1, noisy.slabs


SITES = 3
"""In a secure sum, the fewest that one may have."""


def measured(attack: Attack, images: int, n: int, seed: int, sites: int = 1) -> tuple[float, float, float]:
    """AUC, TPR at 1 % FPR, and the cosine of the best reconstruction (mean over sites), for sites of n images."""
    rng = torch.Generator().manual_seed(seed)
    inside, outside, nearest = [], [], []
    for _ in range(max(2, min(60, 300 // n))):
        order = torch.randperm(images - KNOWN, generator=rng) + KNOWN
        own = list(order[: sites * n].split(n))
        others = order[sites * n : sites * n + max(20, min(n, 150))]
        members = own[0][:150]
        scores, guesses, real = attack(own, torch.cat([members, others]))
        inside.append(scores[: len(members)])
        outside.append(scores[len(members) :])
        if guesses is not None:
            nearest.append(float(torch.cosine_similarity(guesses[:, None], real[None], 2).nan_to_num().abs().max()))
    member, other = torch.cat(inside), torch.cat(outside)
    compared = member[:, None] - other
    auc = float((compared > 0).double().mean() + (compared == 0).double().mean() / 2)
    limit = other.sort(descending=True).values[max(int(0.01 * len(other)) - 1, 0)]
    return auc, float((member > limit).double().mean()), sum(nearest) / len(nearest) if nearest else float("nan")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="rows whose names have this in them")
    parser.add_argument("--record", action="store_true", help="replace these rows where they are published")
    args = parser.parse_args()
    seeds = range(args.seeds)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    digits, found = data(), dict[str, list[str]]()
    for name, sites, attack in attacks(digits):
        if args.only not in name:
            continue
        cells = []
        with torch.random.fork_rng(devices=[]):  # a row is the same whichever others are measured
            torch.manual_seed(0)
            for n in SIZES:
                rows = torch.tensor([measured(attack, len(digits), n, seed, sites) for seed in seeds])
                auc, tpr, near = rows.mean(0).tolist()
                cells.append(f"{auc:.2f} / {100 * tpr:.0f} % / " + (f"{near:.2f}" if near >= 0 else "–"))
        found[name] = [*cells, str(args.seeds)]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    if args.record:
        record(found, MEASURED, PAGE)


def record(found: Mapping[str, Sequence[str]], table: Path, page: Path) -> None:
    """Replace rows of the table, and write all of it between the page's markers."""
    with table.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    rows = [[name, *found.get(name, cells)] for name, *cells in rows]
    rows += [[name, *cells] for name, cells in found.items() if name not in {row[0] for row in rows}]
    with table.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])
    text = page.read_text("utf-8")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    page.write_text(before + BEGIN + "\n\n" + printed(header, rows) + "\n\n" + END + after, "utf-8")


def printed(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table as Markdown, without the number of seeds."""
    lines = [["answer; AUC / TPR at 1 % FPR / cosine", *header[1:-1]], ["---"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [*lines, *(row[:-1] for row in rows)])


if __name__ == "__main__":
    main()
