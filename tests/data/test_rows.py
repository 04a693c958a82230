"""Vectors and tables of the user's own: what becomes of their rows, and every fault with its place and remedy."""

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedfew.core.errors import FedfewError
from fedfew.core.streams import stream
from fedfew.data.dataset import Dataset
from fedfew.data.rows import files
from fedfew.data.rows.datasets import vectors
from fedfew.data.rows.encoder import CATEGORIES, CLIP, FEWEST, TYPICAL, Encoder
from fedfew.data.rows.files import read_rows

X = np.arange(24, dtype=np.float32).reshape(8, 3)
Y = np.array([0, 1, 0, 1, 0, 1, -1, -1])
SITE = np.array(["", "", "", "", "", "", "north", "south"])
SPLIT = np.array(["server"] * 4 + ["test"] * 2 + ["client"] * 2)


def data_of(dataset: Dataset) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    assert dataset.sites is not None
    parts = (dataset.train.samples, dataset.test.samples, dataset.sites.samples)
    return tuple(part.data[:, 0].numpy() for part in parts)  # type: ignore[return-value]


def as_files(folder: Path, kind: str) -> str:
    """The same eight rows: in one table, or as a table for the server, the test set and each site."""
    names = np.where(Y < 0, "", Y.astype(str))
    if kind == "npz":
        np.savez(folder / "all.npz", x=X, y=Y, site=SITE, split=SPLIT)
    elif kind == "parquet":
        table = {"x": X.tolist(), "label": [name or None for name in names], "site": SITE, "split": SPLIT}
        pyarrow.parquet.write_table(pyarrow.table(table), folder / "all.parquet")
    elif kind == "csv":
        lines = ["a,b,c,label,site,split"]
        lines += [",".join(map(str, [*X[i], names[i], SITE[i], SPLIT[i]])) for i in range(8)]
        (folder / "all.csv").write_text("\n".join(lines) + "\n")
    else:
        np.save(folder / "server.npy", X[:4])
        np.save(folder / "server_labels.npy", Y[:4])
        np.savez(folder / "test.npz", features=X[4:6], labels=Y[4:6])
        (folder / "clients").mkdir()
        np.save(folder / "clients" / "north.npy", X[6:7])
        np.savez(folder / "clients" / "south.npz", vectors=X[7:])
        return str(folder)
    return str(folder / f"all.{kind}")


@pytest.mark.parametrize("kind", ["npz", "parquet", "csv", "folder"])
def test_every_format_gives_the_same_rows_standardised_by_the_servers(tmp_path: Path, kind: str) -> None:
    dataset = vectors(path=as_files(tmp_path, kind))
    mean, deviation = X[:4].mean(0), X[:4].std(0)
    expected = (X - mean) / deviation * TYPICAL / np.sqrt(3)
    np.testing.assert_allclose(np.concatenate(data_of(dataset)), expected, rtol=1e-6)
    assert dataset.train.labels.tolist() == [0, 1, 0, 1] and dataset.test.labels.tolist() == [0, 1]
    assert dataset.sites is not None and dataset.sites.names == ("north", "south") and dataset.classes == ("0", "1")
    assert dataset.sites.offsets.tolist() == [0, 1, 2]


def test_rows_without_a_label_belong_to_their_site_and_labels_of_sites_are_only_for_reports(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,sex,ward,dx\n1,f,n,ill\n2,m,n,well\n3,f,s,\n4,x,n,\n,m,s,ill\n")
    dataset = vectors(path=str(tmp_path / "t.csv"), label="dx", site="ward", missing="mean")
    assert dataset.sites is not None and dataset.sites.names == ("n", "s")
    a, female, male = np.concatenate(data_of(dataset)[::2]).T  # server: lines 2, 3, 6; then n: line 5, s: line 4
    half = TYPICAL / np.sqrt(3) / 0.5  # a is 1, 2 and missing at the server: mean 1.5, deviation 0.5
    np.testing.assert_allclose(a, [-0.5 * half, 0.5 * half, 0, 2.5 * half, 1.5 * half], rtol=1e-6)
    assert male[3] < 0 and female[3] < 0, "a value that the server has never seen is none of its values"
    assert (np.sign(female[:3]), np.sign(male[:3])) == (pytest.approx([1, -1, -1]), pytest.approx([-1, 1, 1]))
    assert not len(dataset.test)

    (tmp_path / "u.csv").write_text("a,label,site,split\n1,x,,server\n2,y,,server\n3,y,k,client\n4,z,k,client\n")
    held = vectors(path=str(tmp_path / "u.csv")).sites
    assert held is not None and held.truth is not None and held.truth.tolist() == [1, -1]


def test_a_table_whose_rows_all_have_labels_is_a_simulation_with_its_sites_as_users(tmp_path: Path) -> None:
    lines = [f"{i},{'ab'[i % 2]},s{i % 3}" for i in range(36)]
    (tmp_path / "t.csv").write_text("\n".join(["v,label,site", *lines]))
    dataset = vectors(path=str(tmp_path / "t.csv"))
    assert dataset.sites is None and len(dataset.test) == 6 and dataset.test.labels.tolist().count(0) == 3
    assert dataset.users is not None and len(dataset.users) == 30
    assert set(dataset.users.tolist()) == {0, 1, 2}


def test_views_widths_and_small_floats_are_kept(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(8, 5, 7)).astype(np.float16)
    np.savez(tmp_path / "v.npz", x=x, y=Y, site=SITE, split=SPLIT)
    data = vectors(path=str(tmp_path / "v.npz"), scale="none").train.samples.data
    assert data.dtype == torch.float16 and torch.equal(data, torch.from_numpy(x[:4]))
    length = vectors(path=str(tmp_path / "v.npz"), scale="length").train.samples.data.float().norm(dim=2)
    assert float((length - 4).abs().max()) < 0.01


def test_weak_views_have_noise_and_strong_ones_also_lose_features(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(2000, 10)).astype(np.float32)
    np.savez(tmp_path / "v.npz", x=x, y=np.arange(2000) % 2, split=np.repeat("train", 2000))
    samples = vectors(path=str(tmp_path / "v.npz"), noise=0.2).train.samples
    size = float(samples.data.square().mean().sqrt())
    apart = samples.weak(stream(0, "weak")).data - samples.data
    assert float(apart.std()) == pytest.approx(0.2 * size, rel=0.05)
    lost = (samples.strong(stream(0, "strong")).data == 0).float().mean()
    assert float(lost) == pytest.approx(0.1, abs=0.02)
    first, second = samples.views(2, stream(0, "views"))
    assert not torch.equal(first.data, second.data)


def test_outliers_are_cut_and_constant_columns_left_out(tmp_path: Path) -> None:
    x = np.array([[0, 5.0], [1, 5], [0, 5], [1, 5], [1e9, -1e30]])
    np.savez(tmp_path / "v.npz", x=x, y=[0, 1, 0, 1, -1])
    train, _, away = data_of(vectors(path=str(tmp_path / "v.npz")))
    np.testing.assert_allclose(train, [[-TYPICAL, 0], [TYPICAL, 0]] * 2)
    np.testing.assert_allclose(away, [[CLIP * TYPICAL, 0]])


def test_the_encoder_returns_from_a_files_words_and_refuses_others() -> None:
    rows = files.Rows("t", {"n": np.array(["1", "3"], object), "c": np.array(["p", "q"], object)}, np.arange(2))
    encoder = Encoder.of(rows, ["n", "c"], "standard", "refuse")
    again = Encoder.described(encoder.about())
    assert again == encoder and again.inputs == ["n", "c=p", "c=q"]
    assert torch.equal(encoder.fitting([[1.0, 1, 0], [3, 0, 1]]).data, encoder(rows))
    with pytest.raises(FedfewError, match="E309"):
        Encoder.described(encoder.about() | {"mean": [0.0]})
    for odd in ([[1.0, 2.0]], ["a text"], [[1.0], [1.0, 2.0]]):
        with pytest.raises(FedfewError, match=r"E204 .*expected .*N×3"):
            encoder.fitting(odd)


def csv(text: str | bytes) -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        (folder / "t.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(folder / "t.csv")

    return write


def npz(**arrays: Any) -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        np.savez(folder / "t.npz", **arrays)
        return str(folder / "t.npz")

    return write


def other_width(folder: Path) -> str:
    (folder / "clients").mkdir()
    np.savez(folder / "server.npz", x=np.eye(4), y=[0, 1, 0, 1])
    np.save(folder / "clients" / "north.npy", np.zeros((2, 5)))
    return str(folder)


def ragged_parquet(folder: Path) -> str:
    table = pyarrow.table({"x": [[1.0, 2.0], [1.0]], "label": ["a", "b"]})
    pyarrow.parquet.write_table(table, folder / "t.parquet")
    return str(folder / "t.parquet")


ROWS = "".join(f"{i},{'ab'[i % 2]}\n" for i in range(20))
FAULTS: dict[str, tuple[Callable[[Path], str], str]] = {
    "ragged": (csv("a,label\n1,x\n1,2,y\n"), r"E213 .*t.csv line 3: it has 3 cells, the header has 2"),
    "a string among numbers": (csv("a,label\n" + ROWS + "old,a\n"), "line 22, column a: .old. is not a number"),
    "missing": (csv("a,label\n1,x\nNA,y\n"), r'line 3, column a: is missing\. .*dataset.missing = "mean"'),
    "missing in a vector": (npz(x=[[0, 1.0], [0, np.nan]], y=[0, 1]), r"row 1, column x\[1\]: is missing"),
    "infinite": (csv("a,label\n1,x\ninf,y\n"), "line 3, column a: is infinite"),
    "too many categories": (
        csv("a,label\n" + "".join(f"id{i},{'xy'[i % 2]}\n" for i in range(2 * CATEGORIES))), r"has \d+ diff",
    ),
    "names of patients": (
        csv("a,label\n" + "".join(f"p{i},{'xy'[i % 2]}\n" for i in range(20))), "different values in 18 rows",
    ),
    "decimal commas": (
        csv("a;label\n" + "".join(f"{i},5;{'xy'[i % 2]}\n" for i in range(20))), "of column a have a comma for the dec",
    ),
    "another width at a site": (other_width, r"north.npy: its vectors x are 1×5, the server's 1×4"),
    "ragged parquet": (ragged_parquet, "column x row 1: has 1 numbers, the first row 2"),
    "not UTF-8": (csv("a,label\n1,é\n".encode("latin-1")), "E204 .*line 2 is not UTF-8"),
    "UTF-16": (csv("a,label\n1,x\n".encode("utf-16-le")), "zero bytes"),
    "a cell without end": (csv('a,label\n1,"' + "x" * 200_000), "E204 .*line .*cannot be read as CSV"),
    "an open quote": (csv('a,label\n1,"x\n'), "E204 .*cannot be read as CSV"),
    "no such column": (csv("a,b\n1,2\n"), "it has no column label. It has a, b"),
    "a line of delimiters": (csv("a,label\n" + "," * (files.CELLS + 1)), r"E205 .*line 2 has more than"),
    "names twice": (csv("a,a,label\n1,2,x\n"), "the name 'a' twice"),
    "no rows": (csv("a,label\n"), "no rows below"),
    "one class": (csv("a,label\n1,x\n2,x\n"), "one class"),
    "a class of the test set alone": (
        csv("a,label,split\n1,x,server\n2,y,server\n3,Y,test\n4,,client\n"), "no row of the server has the class Y in",
    ),
    "no columns": (csv("label\nx\ny\n"), "none to learn from"),
    "nothing varies": (csv("a,label\n1,x\n1,y\n"), "no column varies"),
    "no labels": (npz(x=np.eye(2), y=[-1, -1]), "no labeled rows"),
    "a server row without label": (csv("a,label,split\n1,x,server\n2,,test\n3,y,server\n"), "line 3, column label"),
    "other lengths": (npz(x=np.eye(3), y=[0, 1]), r"it holds x \(3, 3\), label \(2,\)"),
    "objects": (npz(x=np.array([{}, {}], object), y=[0, 1]), "E204|E202"),
    "not there": (lambda folder: str(folder / "no.csv"), "E206 .*does not exist"),
    "an empty folder": (str, "E206 .*one server file"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_refused_with_its_place_and_remedy(tmp_path: Path, name: str) -> None:
    write, message = FAULTS[name]
    with pytest.raises(FedfewError, match=message) as fault:
        vectors(path=write(tmp_path))
    assert fault.value.remedy and fault.value.code in ("E202", "E204", "E205", "E206", "E213")


def test_named_classes_leave_rows_without_a_label_as_they_are(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=X, y=Y, classes=np.array(["cat", "dog"]))
    assert read_rows(tmp_path / "rows.npz").column("label").tolist() == ["cat", "dog"] * 3 + [None, None]
    np.savez(tmp_path / "rows.npz", x=X, y=Y + 1, classes=np.array(["cat", "dog"]))
    with pytest.raises(FedfewError, match=r"E204 .*labels go from 0 to 2, but there are 2 classes"):
        read_rows(tmp_path / "rows.npz")
    np.savez(tmp_path / "rows.npz", x=X, site=np.ndarray((8,), "<U0"))
    with pytest.raises(FedfewError, match="E202"):
        read_rows(tmp_path / "rows.npz")


def test_files_that_would_fill_the_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(csv("a,label\n" + "1,x\n" * 100)(tmp_path))
    monkeypatch.setattr(files, "CSV_CAP", 100)
    with pytest.raises(FedfewError, match=r"E205 .*the limit for CSV"):
        read_rows(path)
    zeros = pyarrow.table(
        {"x": pyarrow.array(np.zeros(40_000_000)), "label": pyarrow.nulls(40_000_000, pyarrow.string())}
    )
    for dictionary in (False, True):  # runs of one number take no bytes, whatever they stand for
        pyarrow.parquet.write_table(zeros, tmp_path / "bomb.parquet", use_dictionary=dictionary, compression="zstd")
        with pytest.raises(FedfewError, match=r"E205 .*would expand"):
            read_rows(tmp_path / "bomb.parquet")
    path.write_text("a,label\n" + "1" * 50)
    monkeypatch.setattr(files, "CSV_CAP", 1000)
    monkeypatch.setattr(files, "LINE", 40)
    with pytest.raises(FedfewError, match=r"E205 .*line 2 has more than"):
        read_rows(path)


def test_lists_of_texts_in_parquet_are_no_column(tmp_path: Path) -> None:
    table = {"tags": [["a", "b"], ["c", "d"]], "more": [{"a": 1}, {"a": 2}], "x": [[1, 2], [3, 4]], "text": ["a", "b"]}
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "t.parquet", row_group_size=1)
    rows = read_rows(tmp_path / "t.parquet")
    assert list(rows.columns) == ["x", "text"] and rows.column("x").shape == (2, 2)


def test_a_text_in_many_rows_of_parquet_is_held_once(tmp_path: Path) -> None:
    texts = ["x" * 10_000, None, "é"]
    cells = pyarrow.array([texts[i % 3] for i in range(9000)])
    pyarrow.parquet.write_table(pyarrow.table({"text": cells}), tmp_path / "t.parquet", row_group_size=2000)
    column = read_rows(tmp_path / "t.parquet").column("text")
    assert column.tolist() == texts * 3000 and len({id(cell) for cell in column}) == 3


def site_tables(folder: Path, sizes: dict[str, int]) -> dict[str, NDArray[Any]]:
    """server.csv with ten rows, and a table for each site whose columns are shifted."""
    rng = np.random.default_rng(0)
    (folder / "clients").mkdir(parents=True)
    tables = {"server": rng.normal(size=(10, 2))} | {
        name: rng.normal(1e3 * k, 10, (size, 2)) for k, (name, size) in enumerate(sizes.items(), 1)
    }
    for name, x in tables.items():
        path = folder / ("server.csv" if name == "server" else f"clients/{name}.csv")
        path.write_text(
            "\n".join(["a,b,label", *(f"{float(a)!r},{float(b)!r},{'xy'[i % 2]}" for i, (a, b) in enumerate(x))])
        )
    return tables


def test_sites_add_their_sums_to_means_and_deviations_unless_they_are_small(tmp_path: Path) -> None:
    tables = site_tables(tmp_path / "t", {"north": 40, "small": FEWEST - 1, "south": 25})
    together = np.concatenate([tables[name] for name in ("server", "north", "south")])
    train = vectors(path=str(tmp_path / "t"), statistics="sites").train.samples.data[:, 0].numpy()
    expected = (tables["server"] - together.mean(0)) / together.std(0) * TYPICAL / np.sqrt(2)
    np.testing.assert_allclose(train, expected, rtol=1e-5)

    told = {name: Encoder.told_by(read_rows(tmp_path / "t" / "clients" / f"{name}.csv"), ["a", "b"])
            for name in ("north", "south")}  # fmt: skip
    with pytest.raises(FedfewError, match=r"E213 .*19 rows; sums of fewer than 20"):
        Encoder.told_by(read_rows(tmp_path / "t" / "clients" / "small.csv"), ["a"])
    shutil.rmtree(tmp_path / "t" / "clients")
    with pytest.raises(FedfewError, match=r"E206 .*fedfew data sums"):
        vectors(path=str(tmp_path / "t"), statistics="sites")
    (tmp_path / "t" / "sums").mkdir()
    for name, content in told.items():
        (tmp_path / "t" / "sums" / f"{name}.json").write_text(json.dumps(content))
    elsewhere = vectors(path=str(tmp_path / "t"), statistics="sites").train.samples.data[:, 0].numpy()
    np.testing.assert_allclose(elsewhere, train, rtol=1e-5)
    (tmp_path / "t" / "sums" / "north.json").write_text(json.dumps(told["north"] | {"columns": {"a": [[1], [2]]}}))
    with pytest.raises(FedfewError, match=r"E213 .*column a are not 3×1"):
        vectors(path=str(tmp_path / "t"), statistics="sites")


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: f"a,b,label\n{text}".encode())))
def test_any_bytes_are_rows_or_a_fault_with_a_code(content: bytes) -> None:
    with TemporaryDirectory() as folder:
        for name in ("t.csv", "t.npz", "t.npy", "t.parquet"):
            (Path(folder) / name).write_bytes(content)
            try:
                vectors(path=str(Path(folder) / name))
            except FedfewError as fault:
                assert name in str(fault) and fault.remedy


@pytest.mark.parametrize("kind", ["npz", "parquet", "csv"])
def test_a_file_cut_anywhere_is_rows_or_a_fault_with_a_code(tmp_path: Path, kind: str) -> None:
    path = Path(as_files(tmp_path, kind))
    content = path.read_bytes()
    for length in range(0, len(content), max(len(content) // 40, 1)):
        path.write_bytes(content[:length])
        with contextlib.suppress(FedfewError):
            vectors(path=str(path))
