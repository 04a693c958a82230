"""Groups in a folder of images: patients, none on both sides of a split; sites that look different from the labels."""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.scanners import Scanner
from tests.data.digit_folders import write_digits
from tests.interface.fedfew_command import Capture, fedfew
from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.data.dataset import folded
from fedfew.data.federation import Split, federate
from fedfew.data.images.folders import LABELS, Folder, ImageFile, scan
from fedfew.data.images.looks import apart, different, looks, odd_looking
from fedfew.data.images.own import folder
from fedfew.data.images.subjects import with_subjects
from fedfew.deploy.site.images import load_samples
from fedfew.runs.intervals import of_accuracy
from fedfew.runs.run import Run

QUICK = [f"--set={key}" for key in (
    "rounds=1", "method.warmup=2", "server.epochs=1", "client.epochs=1", "participation=0.5", "fleet.kind=inline",
)]  # fmt: skip


@pytest.fixture(scope="module")
def patients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three images in a row are of one patient; p0–p19 at the server, p100–p116 in test/."""
    root = write_digits(tmp_path_factory.mktemp("patients") / "own", server=60, clients=60, test=50)
    for part, first in (("server", 0), ("test", 100)):
        for file in sorted((root / part).glob("*/*.png")):
            file.rename(file.with_name(f"p{first + int(file.stem) // 3}_{file.name}"))
    return root


def test_names_by_pattern_and_by_labels_csv(patients: Path, tmp_path: Path) -> None:
    named = {file.subject for file in with_subjects(scan(patients), r"^(p\d+)_").files if file.part == "test"}
    assert named == {f"p{k}" for k in range(100, 117)}
    assert not any(file.subject for file in with_subjects(scan(patients)).files)
    shutil.copytree(patients, tmp_path / "listed")
    rows = [(file, file.parent.name, file.name.partition("_")[0]) for file in sorted(patients.glob("test/*/*.png"))]
    lines = [f"{file.relative_to(patients / 'test')},{label},{group}" for file, label, group in rows]
    (tmp_path / "listed" / "test" / LABELS).write_text("\n".join(["image,label,group", *lines]))
    assert {file.subject for file in with_subjects(scan(tmp_path / "listed")).files if file.part == "test"} == named
    for pattern in ("(", "nobody"):
        with pytest.raises(FedfewError, match="E103"):
            with_subjects(scan(patients), pattern)


def test_dicom_files_name_their_patient(tmp_path: Path) -> None:
    pydicom = pytest.importorskip("pydicom")
    source = Path(pydicom.data.get_testdata_file("CT_small.dcm"))
    target = tmp_path / "test" / "a" / "image"
    target.parent.mkdir(parents=True)
    shutil.copy(source, target)
    (file,) = with_subjects(scan(tmp_path)).files
    assert file.subject == pydicom.dcmread(source).PatientID


def test_no_group_is_on_both_sides_of_a_split(patients: Path) -> None:
    data = folder(path=str(patients), size=28, channels=1, group=r"^(p\d+)_")
    assert data.train.groups is not None and data.test.groups is not None
    made = federate(data, Split(validation=12), labels=60, clients=1)
    held, left = made.validation.groups, made.test.groups
    assert held is not None and left is not None and not set(held.tolist()) & set(left.tolist())
    assert 9 <= len(held) <= 12 and len(held) + len(left) == 50
    without = replace(
        data.test, samples=data.test.samples.take(torch.arange(0)), labels=data.test.labels[:0], groups=None
    )
    seen = []
    for k in (1, 2, 3):
        train, test = folded(data.train, without, f"{k}/3")
        assert train.groups is not None and test.groups is not None
        assert not set(train.groups.tolist()) & set(test.groups.tolist())
        seen += test.groups.tolist()
    assert sorted(seen) == sorted(data.train.groups.tolist())


def test_a_site_uses_no_more_images_of_a_person_than_its_noise_hides(patients: Path) -> None:
    about = {"kind": "images", "shape": [1, 28, 28], "flips": False}
    for most, count in ((0, 50), (2, 17 * 2), (1, 17)):  # 16 patients with three images, one with two
        assert len(load_samples(patients / "test", about, most, r"^(p\d+)_")) == count


def test_check_finds_a_patient_at_the_server_and_in_test(patients: Path, tmp_path: Path, capsys: Capture) -> None:
    whole = fedfew(capsys, "check", patients, "--group", r"^(p\d+)_", "--json", "--csv", tmp_path / "c.csv").json
    assert whole["groups"] == 37 and not whole["errors"]
    shutil.copytree(patients, tmp_path / "own")
    file = next((tmp_path / "own" / "test").glob("*/p100_*.png"))
    file.rename(file.with_name(file.name.replace("p100_", "p3_")))
    said = fedfew(capsys, "check", tmp_path / "own", "--group", r"^(p\d+)_")
    assert said.status == 2 and "E207" in said.err and "1 group has images both in server/ and in test/" in said.err


def test_intervals_are_over_patients_up_to_the_verdict(patients: Path, tmp_path: Path, capsys: Capture) -> None:
    said = fedfew(capsys, "try", patients, "--group", r"^(p\d+)_", *QUICK, "--out", tmp_path / "tried")
    assert said.status == 0, said.err
    assert "on 50 test images of 17 groups" in said.out
    run = Run.open(tmp_path / "tried" / "server-only")
    judged = run.judged
    assert judged is not None and judged.groups is not None and len(np.unique(judged.groups)) == 17
    own = of_accuracy(judged.right, judged.groups)
    assert run.evaluation["interval"] == [own.low, own.high] and run.evaluation["groups"] == 17


def pictures(count: int, seed: int) -> Tensor:
    """Color images with texture, whose brightness varies."""
    rng = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 6, 6, generator=rng)
    smooth = torch.nn.functional.interpolate(coarse, (32, 32), mode="bicubic", align_corners=False)
    fine = torch.rand(count, 1, 32, 32, generator=rng)
    light = 60 + 40 * torch.rand(count, 1, 1, 1, generator=rng)
    return (light + 90 * smooth + 12 * fine).clamp(0, 255).to(torch.uint8)


def test_looks_of_a_plane_a_chessboard_and_color() -> None:
    plane = torch.full((1, 3, 8, 8), 51, dtype=torch.uint8)
    board = (100 * ((torch.arange(8)[:, None] + torch.arange(8)) % 2)).to(torch.uint8).expand(1, 3, 8, 8)
    red = plane.clone()
    red[:, 1:] = 0
    brightness, contrast, sharp, grain, color = looks(torch.cat([plane, board, red])).T
    assert brightness.tolist() == pytest.approx([51, 50, 17])
    # a board of 32 pixels at 0 and 32 at 100: squares of 50² sum up to 64 · 2500, over 63
    assert contrast.tolist() == pytest.approx([0, math.sqrt(64 * 2500 / 63), 0])
    assert float(grain[1]) == pytest.approx(math.log(401))  # four neighbours differ by 100
    assert float(sharp[1]) == pytest.approx(math.log(400 / math.sqrt(64 * 2500 / 63) + 0.01))
    assert color.tolist() == pytest.approx([0, 0, 51])


@pytest.mark.parametrize(
    ("kind", "high", "words"),
    [
        ("gamma", True, "darker"),
        ("contrast", False, "of lower contrast"),
        ("blur", True, "blurred"),
        ("noise", True, "noisier"),
        ("cast", True, "less colorful"),
    ],
)
def test_a_site_with_another_scanner_looks_different_and_one_without_does_not(
    kind: str, high: bool, words: str
) -> None:
    scanner = Scanner(kind, "strong", high, 1.0, (1.0, 1.0, -1.0), 0)
    sites = {"a": looks(pictures(100, 1)), "b": looks(scanner(pictures(100, 2)))}
    result = different(looks(pictures(40, 0)), torch.arange(40) % 4, sites)
    assert [difference.site for difference in result] == ["b"]
    assert words in result[0].words


def test_features_of_another_scanner_are_apart_and_those_of_another_mix_of_classes_are_not() -> None:
    rng = torch.Generator().manual_seed(0)
    means = 3 * torch.randn(4, 50, generator=rng)

    def drawn(classes: torch.Tensor) -> torch.Tensor:
        return (means[classes] + torch.randn(len(classes), 50, generator=rng)).double()

    labels = torch.arange(40) % 4
    sites = {f"mixed {k}": drawn(torch.arange(100) % 4) for k in range(20)}
    sites |= {f"one class {k}": drawn(torch.full((100,), k % 4)) for k in range(20)}
    sites |= {f"a few {k}": drawn(torch.arange(3) % 4) for k in range(20)}
    assert apart(drawn(labels), labels, sites) == []
    # a shift s is noticed beyond s² = tr(W) (1/40 + 1/100) (1 + 3 √(2/36)) = 1.7², with tr(W) = 50; it is 2.1²
    moved = {name: x + torch.randn(50, generator=rng) * 0.3 for name, x in sites.items() if name.startswith("mixed")}
    assert len(apart(drawn(labels), labels, moved)) == 20
    assert apart(drawn(labels[:4]), labels[:4], moved) == [], "one label of a class says nothing about its spread"


def test_of_many_images_some_are_compared(tmp_path: Path) -> None:
    sizes = list[int]()

    def embed(images: torch.Tensor) -> torch.Tensor:
        sizes.append(len(images))
        return images.float().mean((2, 3))

    paths = [("server", f"{k % 2}", k) for k in range(2500)] + [("clients", "a", k) for k in range(700)]
    files = [ImageFile(f"{part}/{group}/{k}", part, group) for part, group, k in paths]
    noise = torch.randint(256, (len(files), 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    groups = {"server": ("0", "1"), "clients": ("a",)}
    assert odd_looking(Folder(tmp_path, files, [], groups, images=noise), embed) == [] and sizes == [834 + 234]


def test_a_site_with_a_single_class_does_not_look_different() -> None:
    by_class = torch.tensor([0.0, 30.0])  # brightness: classes differ by 30, images of a class by ± 10
    rng = torch.Generator().manual_seed(0)
    classes = torch.arange(40) % 2
    server = (by_class[classes] + 10 * torch.randn(40, generator=rng)).double()[:, None].repeat(1, 5)
    site = (by_class[1] + 10 * torch.randn(100, generator=rng)).double()[:, None].repeat(1, 5)
    assert different(server, classes, {"one class": site}) == []
    # τ = 30/√2 = 21: 1.5 τ + 3 · 10 √(1/40 + 1/100) = 37 from the middle, 15
    assert [d.site for d in different(server, classes, {"another": site + 30})] == ["another"]
