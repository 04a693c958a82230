"""Features once: a frozen backbone is run one time for every image, and everything else works on what it gave."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract.runs import SURE, TINY, tiny_rounds
from torch import Tensor

from fedfew.config.parts import assemble
from fedfew.config.schema import load
from fedfew.config.tree import settings_for
from fedfew.core.errors import ConfigErrors, FedfewError
from fedfew.data.samples import Images
from fedfew.methods import METHODS
from fedfew.models.backbones import Backbone, Pretrained, features
from fedfew.models.backbones.efficientnet_lite0 import efficientnet_lite0
from fedfew.models.backbones.features import extract
from fedfew.runs.model_file import predict
from fedfew.runs.run import Run
from fedfew.runs.session import Experiment, reopen
from fedfew.runtime.record import left_out

FIRST = {"model": {"name": "efficientnet-lite0", "size": 32, "views": 3}}
"""32 pixels, so that an image takes a millisecond."""


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of this module's own, in which each image is computed once."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDFEW_DATA", str(folder))
        yield folder


@pytest.fixture(scope="module")
def model() -> Pretrained:
    return efficientnet_lite0(3, 16, 10, size=32, views=3)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images went through a backbone, pass by pass."""
    seen: list[int] = []
    whole = Pretrained.features

    def counted(self: Pretrained, images: Images, keys: Tensor) -> Tensor:
        seen.append(len(images))
        return whole(self, images, keys)

    monkeypatch.setattr(Pretrained, "features", counted)
    return seen


def pictures(count: int, seed: int = 0, size: int = 16) -> Images:
    rng = torch.Generator().manual_seed(seed)
    return Images(torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=rng))


def alarm(fault: FedfewError) -> None:
    raise fault


# the cache


def test_every_image_is_computed_once_whatever_its_place(model: Pretrained, passes: list[int]) -> None:
    images = pictures(130)
    few = images.take(torch.arange(30))
    first = extract(model, [few, images.take(torch.arange(30, 130))])
    assert [tuple(part.shape) for part in first] == [(30, 3, 1280), (100, 3, 1280)]
    assert all(part.dtype == torch.float16 for part in first)
    done = len(passes)
    order = torch.randperm(130)
    again = extract(model, [images.take(order), images.take(torch.arange(5))])
    assert len(passes) == done, "nothing was computed again"
    assert torch.equal(again[0], torch.cat(first)[order]) and torch.equal(again[1], first[0][:5])
    more = extract(model, [pictures(3, seed=9).join(images, pictures(3, seed=9))])[0]
    assert len(passes) == done + 1, "three new images, in one pass, though each is there twice"
    assert torch.equal(more[:3], more[-3:]) and torch.equal(more[3:-3], torch.cat(first))


def test_who_has_all_features_waits_for_nobody(model: Pretrained, monkeypatch: pytest.MonkeyPatch) -> None:
    images = pictures(3, seed=91)
    (first,) = extract(model, [images])

    def busy(store: features.Store) -> None:
        raise AssertionError("another run computes features")

    monkeypatch.setattr(features.Store, "held", busy)
    (again,) = extract(model, [images])
    assert torch.equal(first, again)


def test_bits_do_not_depend_on_threads_or_on_the_batch(
    model: Pretrained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "BLOCK", 48)
    images = pictures(150, seed=1)
    found = []
    for number, (workers, parts) in enumerate([(1, [images]), (3, [images]), (1, [images.take(torch.arange(1))])]):
        monkeypatch.setenv("FEDFEW_DATA", str(tmp_path / str(number)))
        found.append(extract(model, parts, workers)[0])
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0][:1], found[2])


def test_other_settings_have_features_of_their_own(passes: list[int]) -> None:
    images = pictures(4, seed=2)
    kinds: list[tuple[dict[str, Any], bool]] = [
        ({"size": 32}, True),
        ({"size": 48}, True),
        ({"size": 32, "views": 2}, True),
        ({"size": 32, "views": 2}, False),
        ({"size": 32, "train": "last"}, True),
    ]
    found = [
        extract(efficientnet_lite0(3, 16, 10, **options), [Images(images.data, flips)])[0] for options, flips in kinds
    ]
    assert len(passes) == len(kinds)
    assert not torch.equal(found[0], found[1]) and not torch.equal(found[2], found[3])
    assert found[4].shape == (4, 1, 192)


def test_an_interrupted_extraction_goes_on_where_it_was(
    model: Pretrained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: list[int]
) -> None:
    monkeypatch.setenv("FEDFEW_DATA", str(tmp_path))
    monkeypatch.setattr(features, "BLOCK", 48)
    images = pictures(200, seed=3)
    told: list[tuple[int, int]] = []

    def report(done: int, total: int) -> None:
        told.append((done, total))
        if done >= 120:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract(model, [images], report=report)
    kept = list(tmp_path.rglob("*.safetensors"))
    assert 1 <= len(kept) <= 2 and not list(tmp_path.rglob(".*.tmp"))
    assert told[-1][1] == 200
    passes.clear()
    extract(model, [images])
    assert 200 - 48 * len(kept) <= sum(passes) < 200 - 48 * len(kept) + 48


@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "text"])
def test_a_damaged_block_is_made_again(
    harm: str, model: Pretrained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: list[int]
) -> None:
    monkeypatch.setenv("FEDFEW_DATA", str(tmp_path))
    images = pictures(20, seed=4)
    sound = extract(model, [images])[0]
    (path,) = tmp_path.rglob("*.safetensors")
    content = bytearray(path.read_bytes())
    content[-7] ^= 4
    path.write_bytes({"flip": bytes(content), "cut": bytes(content[:-50]), "empty": b"", "text": b"x" * 400}[harm])
    passes.clear()
    assert torch.equal(extract(model, [images])[0], sound)
    assert len(passes) == 1
    passes.clear()
    extract(model, [images])
    assert not passes


def test_a_cache_that_cannot_be_written_costs_time_only(
    model: Pretrained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("FEDFEW_DATA", str(tmp_path / "file"))
    assert extract(model, [pictures(3)])[0].shape == (3, 3, 1280)


# runs


def test_a_run_on_features_gives_a_model_for_images(tmp_path: Path, passes: list[int]) -> None:
    experiment = Experiment.load(TINY | FIRST | {"method": {"name": "fedmix"}})
    told: list[tuple[int, int]] = []
    session = experiment.start(tmp_path / "run", report=lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1] == sum(1 for _ in session.parts.federation.samples.data) + 20 + 20 + 10 + 12
    federation = session.parts.federation
    assert federation.samples.data.shape == (48, 3, 1280) and session.parts.network.layout.size == 1280 * 10 + 10
    for _ in session.advance():
        pass
    run = Run.open(tmp_path / "run")
    about = run.about_model()
    assert about["shape"] == list(load_test_images().shape[1:])
    backbone = about["backbone"]
    assert backbone["name"] == "efficientnet-lite0" and len(backbone["sha256"]) == 64
    looks = {"size": 32, "mean": [127 / 255] * 3, "std": [128 / 255] * 3, "interpolation": "bicubic"}
    assert backbone["preprocess"] == looks
    assert (tmp_path / "run" / "model.safetensors").stat().st_size < 60_000, "the head alone"

    images = load_test_images()
    expected = session.parts.network.probabilities(federation.test.samples)
    torch.testing.assert_close(predict(run, images), expected, atol=5e-3, rtol=0)
    full = run.network()
    assert isinstance(full.module, Pretrained)

    passes.clear()
    again = experiment.run(tmp_path / "again")
    assert not passes, "the second run reads the cache"
    assert again.summary["model_sha256"] == run.summary["model_sha256"]


def load_test_images() -> Tensor:
    """The test images of TINY's federation, as they were before they became features."""
    from fedfew.config.parts import federation_of

    return federation_of(load(TINY | FIRST)).test.samples.data


@pytest.mark.parametrize(("kind", "train"), [("pool", "last"), ("inline", "head")])
def test_a_run_that_was_interrupted_ends_the_same_on_any_fleet(kind: str, train: str, tmp_path: Path) -> None:
    """It begins on ``kind`` and ends in this process."""
    table = TINY | {"model": FIRST["model"] | {"train": train, "lr_scale": 0.5}, "method": {"name": "fedavg"}}
    whole = Experiment.load(table).run(tmp_path / "whole")
    session = Experiment.load(table, {"fleet.kind": kind, "fleet.workers": 1}).start(tmp_path / "run")
    rounds = session.advance()
    next(rounds)
    rounds.close()
    for _ in reopen(tmp_path / "run", alarm, {"fleet.kind": "inline"}).advance():
        pass
    assert Run.open(tmp_path / "run").summary["model_sha256"] == whole.summary["model_sha256"]


@pytest.mark.parametrize("method", [name for name in METHODS if name != "fedbn"])
def test_every_method_runs_on_features(method: str) -> None:
    known = settings_for("method", method)
    settings = {"name": method} | {key: value for key, value in SURE.items() if key in known}
    config = load(TINY | FIRST | {"method": settings, "objective": {"threshold": 0.05}})
    parts = assemble(config)
    first = parts.network.snapshot()
    rounds = tiny_rounds(config, parts)
    assert len(rounds) == 2
    for state, record in rounds:
        assert not left_out(record) and not record["skipped"]
        assert bool(torch.isfinite(state.omega).all())
    assert not torch.equal(rounds[1][0].omega, first)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method.name": "fedbn"}, r"E113.*no normalisation layers.*Use another method"),
        ({"norm.policy": "local"}, r"E113.*no normalisation layers"),
        ({"norm.policy": "server-data"}, r"E113.*no batch norm"),
        ({"model.width": 16}, r"E104.*model.width"),
        ({"model.norm": "batch"}, r"E104.*model.norm"),
        ({"model.size": 16}, r"E103.*model.size = 16"),
        ({"model.size": 256}, r"E103.*model.size = 256"),
        ({"model.train": "some"}, r"E103.*model.train"),
        ({"model.views": 0}, r"E103.*model.views"),
        ({"dataset.normalize": "standard"}, r"E113.*has its own mean"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigErrors, FedfewError), match=words):
        assemble(load(TINY | FIRST, changes))


def test_the_model_of_another_backbone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Experiment.load(TINY | FIRST | {"rounds": 1}).run(tmp_path / "run")
    other = {"model": FIRST["model"] | {"size": 48}, "start": str(tmp_path / "run")}
    with pytest.raises(FedfewError, match=r"E313.*preprocess"):
        Experiment.load(TINY | other).start(tmp_path / "other")
    assert not (tmp_path / "other").exists()
    whole = Pretrained.about
    monkeypatch.setattr(Pretrained, "about", lambda self: whole(self) | {"sha256": "0" * 64})
    with pytest.raises(FedfewError, match=r"E313.*sha256"):
        run.network()


def test_a_resumed_run_needs_its_backbone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Experiment.load(TINY | FIRST).start(tmp_path / "run")
    rounds = session.advance()
    next(rounds)
    rounds.close()
    monkeypatch.setattr(Backbone, "hash", property(lambda backbone: "0" * 64))
    with pytest.raises(FedfewError, match=r"E307.*backbone"):
        reopen(tmp_path / "run", alarm)


def test_fine_tuning_starts_from_the_head_of_a_run(tmp_path: Path) -> None:
    run = Experiment.load(TINY | FIRST | {"rounds": 1}).run(tmp_path / "head")
    table = TINY | {"model": FIRST["model"] | {"train": "last"}, "start": str(run.path)}
    session = Experiment.load(table).start(tmp_path / "last")
    first = session.parts.network.layout.views(session.state.omega)
    trained = run.network()
    assert torch.equal(first["head.weight"], trained.layout.views(trained.vector)["head.weight"])
    for _ in session.advance():
        pass
    images = load_test_images()
    expected = session.parts.network.probabilities(session.parts.federation.test.samples)
    torch.testing.assert_close(predict(tmp_path / "last", images), expected, atol=2e-2, rtol=0)
