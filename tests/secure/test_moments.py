"""fedmoments on secure sums: the same model as without masks, on every fleet, and sites that are lied to refuse."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.secure.test_exchange import Between

import fedfew
from fedfew.config.parts import Parts, assemble, local_fleet, sites_of
from fedfew.config.schema import load
from fedfew.core.errors import FedfewError
from fedfew.core.layout import Payload
from fedfew.core.types import Fleet, ServerState
from fedfew.runtime.rounds import run_rounds
from fedfew.runtime.site import InlineFleet
from fedfew.secure.messages import MASKED
from fedfew.transforms.privacy import Private

MEANS = np.random.default_rng(5).normal(size=(3, 12))
SECURE = {"method.name": "fedmoments", "rounds": 4, "privacy.sums": "secure", "fleet.kind": "inline",
          "method.fold_directions": 12, "method.folds": 2}  # fmt: skip


def drawn(labels: Any, seed: int) -> Any:
    return MEANS[labels] + np.random.default_rng(seed).normal(size=(len(labels), 12))


def parts_of(folder: Path, changes: Mapping[str, Any]) -> Parts:
    """Six sites of 40 vectors, each with other class shares, and four labels a class."""
    rng, few, held = np.random.default_rng(1), np.arange(3).repeat(4), np.arange(3).repeat(40)
    sites = [drawn(rng.choice(3, 40, p=rng.dirichlet([0.3] * 3)), k) for k in range(6)]
    config = fedfew.from_arrays((drawn(few, 90), few), sites, (drawn(held, 91), held), path=folder)
    return assemble(load(config, SECURE | dict(changes)))


def trained(parts: Parts, fleet: Fleet) -> list[ServerState]:
    begun = parts.algorithm.start(torch.zeros_like(parts.network.snapshot()))
    try:
        states = run_rounds(parts.clients, parts.algorithm, parts.server, fleet, begun, parts.config.rounds)
        return [state for state, _ in states]
    finally:
        fleet.close()


def test_the_model_is_that_of_the_plain_run_and_of_every_fleet(tmp_path: Path) -> None:
    parts = parts_of(tmp_path / "x", {})
    assert parts.config.document["method"]["sums_only"] and not parts.config.document["method"]["scanners"]
    secure = trained(parts, local_fleet(parts))
    open_sites = replace(sites_of(parts.config, parts.federation, parts.network), sums=None)
    plain = trained(replace(parts, clients=replace(parts.clients, exchange=None)), InlineFleet(open_sites))
    pool = parts_of(tmp_path / "x", {"fleet.kind": "pool", "fleet.workers": 2})
    pooled = trained(pool, local_fleet(pool))
    assert float(secure[-1].extra["step"]) >= 1
    for name in ("weight", "bias", "mix"):  # what a step of EM made of the sums, which travel back as float32
        assert torch.allclose(secure[-1].extra[name], plain[-1].extra[name], rtol=1e-4, atol=1e-5)
    assert torch.allclose(secure[-1].omega, plain[-1].omega, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(tensor, pooled[-1].extra[name]) for name, tensor in secure[-1].extra.items())
    assert secure[-1].participation == plain[-1].participation
    assert not [name for name in secure[-1].extra if name.startswith("answers/")]  # nothing of one site is kept


def test_a_site_that_is_sent_other_scores_than_the_others_refuses(tmp_path: Path) -> None:
    parts = parts_of(tmp_path / "x", {})

    def lie(step: int, sent: dict[int, Payload]) -> dict[int, Payload]:
        if step == MASKED and "weight" in sent[0]:
            return sent | {0: sent[0] | {"weight": -sent[0]["weight"]}}
        return sent

    fleet = Between(parts, lie)
    trained(parts, fleet)
    assert "another model than the terms say" in fleet.refusals(MASKED)[0]


def test_a_clip_is_refused_because_counts_would_not_travel(tmp_path: Path) -> None:
    with pytest.raises(FedfewError, match=r"E113.*privacy.clip"):
        parts_of(tmp_path / "x", {"privacy.noise": 1.0, "privacy.clip": 1.0})


IMAGES = {"privacy.unit": "image", "method.population": 6, "method.directions": 12, "method.most_steps": 2, "rounds": 3}


def test_with_little_noise_for_single_images_the_sums_are_those_of_the_bounded_answers(tmp_path: Path) -> None:
    """The survey and two steps of EM, each a sum with noise; no run ends, whatever the noise."""
    parts = parts_of(tmp_path / "x", IMAGES | {"privacy.noise": 1e-3})
    survey, first, last = trained(parts, local_fleet(parts))
    assert float(survey.extra["survey_counts"][0]) == pytest.approx(240, abs=1)  # six sites of 40
    assert not parts.algorithm.asks(last) and float(last.extra["step"]) == 2
    local = (Private(0.0, 1e-3, per_image=True),)
    sites = replace(sites_of(parts.config, parts.federation, parts.network), sums=None, transforms=local)
    clients = replace(parts.clients, exchange=None, transforms=local)
    plain = trained(replace(parts, clients=clients), InlineFleet(sites))
    for name in ("weight", "bias", "mix"):
        assert torch.allclose(first.extra[name], plain[1].extra[name], rtol=1e-2, atol=1e-2)
    assert float(last.extra["noise"]) == pytest.approx(1e-3 * 2**0.5)  # six of six sites, of which three are needed
    much = parts_of(tmp_path / "x", IMAGES | {"privacy.noise": 1e4})
    states = trained(much, local_fleet(much))
    assert bool(states[-1].omega.isfinite().all())


@pytest.mark.parametrize("noise", [0.1, 30.0])
def test_noise_at_each_site_passes_the_gate(tmp_path: Path, noise: float) -> None:
    parts = parts_of(tmp_path / "x", IMAGES | {"privacy.sums": "open", "privacy.noise": noise})
    states = trained(parts, local_fleet(parts))
    assert len(states[-1].participation) == 6 and float(states[-1].extra["step"]) >= 1
