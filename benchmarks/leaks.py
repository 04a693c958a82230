"""What a curious server can read from one answer of a site: ``python -m benchmarks.leaks [--seeds 3]``.

The package's own digits, shrunk to 14×14; their pixels are the features. Two attacks on each answer:

    membership        a score for each candidate image, half of which are the site's: AUC, and how many of the site's
                      images are named when 1 % of the others are. Models: cosine of the update and of the candidate's
                      own gradient. Survey: yᵀ(Σyyᵀ + λ)⁻¹y, which is at most 1 for images of the site
    reconstruction    cosine of the nearest of the site's images (less the mean of all) to a vector taken from the
                      answer: Δw_c/Δb_c of a linear head, eigenvectors of the survey's second moment

A site trains for one epoch on its own predictions. The malicious server sends a linear head with zero weights, so that
the update is a sum of raw features, and asks fedmoments for nothing more than the survey, which it gets in any case.
"""

import argparse
from collections.abc import Callable, Iterator

import torch
from benchmarks.attacks import small
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedfew.data import DATASETS
from fedfew.methods.fedmoments.bounded import MEAN, SECOND, survey_sums
from fedfew.methods.fedmoments.survey import matrix_of, moments_of
from fedfew.transforms import epsilon
from fedfew.transforms.privacy import blurred

SIZES, BATCH, LR, DELTA = (1, 5, 20, 100, 1000), 10, 0.1, 1e-5
RIDGE = 1e-3
Attack = Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""Scores of candidates, and vectors that may be images, from a site's images and the candidates."""


def data() -> tuple[Tensor, Tensor]:
    """Standardised pixels (N×196), and labels."""
    train = DATASETS["mini-mnist"]().train
    x = small(train.samples.data).flatten(1).double()
    return (x - x.mean(0)) / x.std(), train.labels


def of_model(network: nn.Module) -> Attack:
    """An update of this model, trained for an epoch on its own predictions."""
    start = nn.utils.parameters_to_vector(network.parameters()).detach().clone()

    def gradient(x: Tensor) -> Tensor:
        loss = cross_entropy(network(x), network(x).argmax(1))
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(network.parameters()))])

    def attack(own: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor | None]:
        labels = network(own).argmax(1)
        for batch, wanted in zip(own.split(BATCH), labels.split(BATCH), strict=True):
            loss = cross_entropy(network(batch), wanted)
            for p, g in zip(network.parameters(), torch.autograd.grad(loss, list(network.parameters())), strict=True):
                p.data -= LR * g
        change = nn.utils.parameters_to_vector(network.parameters()).detach() - start
        nn.utils.vector_to_parameters(start.clone(), network.parameters())
        scores = torch.stack([-torch.cosine_similarity(gradient(x[None]), change, 0) for x in candidates])
        if not isinstance(network, nn.Linear):
            return scores, None
        classes = network.out_features
        return scores, change[:-classes].view(classes, -1) / change[-classes:, None]

    return attack


def of_survey(noise: float) -> Attack:
    """The survey of fedmoments; with noise for single images, if there is any."""

    def attack(own: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor | None]:
        width = own.shape[1]
        sums = moments_of(own)
        if noise:
            sums = blurred(survey_sums(own), noise)[1:]
            sums[:width] /= MEAN
            sums[width:] /= SECOND
            sums[2 * width :] /= 2**0.5
        second = matrix_of(sums, width)
        values, vectors = torch.linalg.eigh(second)
        values = values.clamp_min(0) + RIDGE * values[-1].abs()
        inside = ((candidates @ vectors).square() / values).sum(1)
        return -inside, torch.cat([sums[None, :width], vectors.T[-min(len(own), width) :]])

    return attack


def attacks(x: Tensor, y: Tensor) -> Iterator[tuple[str, Attack]]:
    """All of them; models are trained on 50 labels first, as the server would."""
    width, few = x.shape[1], slice(0, 50)
    network = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 10)).double()
    for name, model in (("linear head", nn.Linear(width, 10).double()), ("network of two layers", network)):
        descent = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(100):
            descent.zero_grad()
            cross_entropy(model(x[few]), y[few]).backward()
            descent.step()
        yield name, of_model(model)
    zero = nn.Linear(width, 10).double()
    for p in zero.parameters():
        p.data.zero_()
    yield "linear head, malicious server", of_model(zero)
    yield "fedmoments, survey", of_survey(0.0)
    for z in (1.2, 7.5):
        yield f"fedmoments, survey, noise {z:g} (ε = {epsilon({2 * z: 4}, DELTA):.1f} with 3 steps)", of_survey(z)


def measured(attack: Attack, x: Tensor, n: int, seed: int) -> tuple[float, float, float]:
    """AUC, TPR at 1 % FPR, and the cosine of the best reconstruction (mean over sites), for sites of n images."""
    rng = torch.Generator().manual_seed(seed)
    inside, outside, nearest = [], [], []
    for _ in range(max(2, min(60, 300 // n))):
        order = torch.randperm(len(x) - 50, generator=rng) + 50
        own, others = x[order[:n]], x[order[n : n + max(20, min(n, 150))]]
        scores, guesses = attack(own, torch.cat([own[:150], others]))
        inside.append(scores[: len(own[:150])])
        outside.append(scores[len(own[:150]) :])
        if guesses is not None:
            nearest.append(float(torch.cosine_similarity(guesses[:, None], own[None], 2).nan_to_num().abs().max()))
    member, other = torch.cat(inside), torch.cat(outside)
    compared = member[:, None] - other
    auc = float((compared > 0).double().mean() + (compared == 0).double().mean() / 2)
    limit = other.sort(descending=True).values[max(int(0.01 * len(other)) - 1, 0)]
    return auc, float((member > limit).double().mean()), sum(nearest) / len(nearest) if nearest else float("nan")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = data()
    print("| answer; AUC / TPR at 1 % FPR / cosine |" + "".join(f" {n:,} images |" for n in SIZES))
    print("|---|" + "---|" * len(SIZES))
    for name, attack in attacks(x, y):
        cells = []
        for n in SIZES:
            auc, tpr, near = torch.tensor([measured(attack, x, n, seed) for seed in seeds]).mean(0).tolist()
            cells.append(f"{auc:.2f} / {100 * tpr:.0f} % / " + (f"{near:.2f}" if near >= 0 else "–"))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
