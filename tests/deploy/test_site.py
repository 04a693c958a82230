"""A real site that keeps to itself what is nobody's business."""

import json
import math
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from tests.models.test_sentence import encoder, notes  # noqa: F401 - a fixture

from fedfew.config.parts import Parts, assemble, network_of
from fedfew.config.schema import check
from fedfew.core.errors import FedfewError
from fedfew.core.layout import Payload
from fedfew.core.types import ClientUpdate
from fedfew.deploy.doctor import _site_step
from fedfew.deploy.messages.frames import encode, receive, send
from fedfew.deploy.messages.tensors import pack, unpack
from fedfew.deploy.server.server_app import run_description
from fedfew.deploy.site.build import real_site
from fedfew.deploy.site.files import Memory, PrivacyBudget
from fedfew.deploy.site.images import load_samples, own_rows
from fedfew.deploy.site.limits import LIMITS, SiteTerms, site_terms
from fedfew.deploy.site.warm_site import WarmSite, _exchange
from fedfew.methods.fedmoments.method import FedMoments
from fedfew.runtime.gate import Gate
from fedfew.transforms import Privacy, epsilon

Tiny = Callable[..., Parts]


def message(parts: Parts, omega: torch.Tensor, round: int = 0, client: int = 1) -> tuple[dict[str, Any], Any]:
    payload: Payload = parts.algorithm.broadcast(parts.algorithm.start(omega), client)
    index, content = pack({"x": payload})
    head = {"kind": "train", "round": round, "jobs": [{"client": client, "tensors": index["x"]}]}
    return head | run_description(parts, "run"), content


def real(state: Path, images: Path, **terms: float) -> WarmSite:
    state.mkdir(exist_ok=True)
    demands = SiteTerms(**terms)  # type: ignore[arg-type]
    budget = PrivacyBudget(state / "privacy.json", demands.max_epsilon)
    return WarmSite(1, real_site(1, images, demands, state), state, state / "memory", budget, demands)


def test_a_real_site_trains_its_own_images_and_tells_no_classes(tiny: Tiny, images: Path, tmp_path: Path) -> None:
    parts = tiny(method__threshold=0.0)
    site = real(tmp_path / "s", images)
    head, content = message(parts, parts.network.snapshot())
    reply, up = site.answer(head, content)
    (answer,) = reply["answers"]
    assert answer["examples"] == 20 and answer["metrics"]["kept"] == 20.0
    assert not [name for name in answer["metrics"] if name.startswith("class/") or name == "right"]
    assert list(unpack(answer["tensors"], up)) == ["psi"]


def test_a_real_site_computes_its_own_features(
    tiny: Tiny, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDFEW_DATA", str(tmp_path / "server"))
    document = dict(tiny(method__threshold=0.0).config.document)
    parts = assemble(check(document | {"model": {"name": "efficientnet-lite0", "size": 32}}))
    monkeypatch.setenv("FEDFEW_DATA", str(tmp_path / "site"))
    site = real(tmp_path / "s", images)
    head, content = message(parts, parts.network.snapshot())
    assert len(head["about"]["samples"]["shape"]) == 3 and len(head["about"]["backbone"]) == 64
    reply, up = site.answer(head, content)
    assert list((tmp_path / "site").rglob("*.safetensors")), "the features stay at the site"
    (answer,) = reply["answers"]
    assert unpack(answer["tensors"], up)["psi"].shape == (1280 * 10 + 10,)
    other = head | {"run": "another", "about": head["about"] | {"backbone": "0" * 64}}
    (refused,) = site.answer(other, content)[0]["answers"]
    assert refused == {"client": 1, "code": "E417.model"}


def test_a_message_that_comes_again_gets_the_stored_answer_and_another_message_other_noise(
    tiny: Tiny, images: Path, tmp_path: Path
) -> None:
    parts = tiny(privacy__clip=1e-6, privacy__noise=1e6)  # the change is nothing, the noise of deviation 1 is all
    omega = network_of(parts.config, parts.federation).snapshot()

    def noise(site: WarmSite, start: torch.Tensor) -> torch.Tensor:
        reply, up = site.answer(*message(parts, start))
        return unpack(reply["answers"][0]["tensors"], up)["psi"] - start

    def charged() -> int:
        return int(json.loads((tmp_path / "one" / "privacy.json").read_text())["updates"][0]["count"])

    def unlike(other: torch.Tensor) -> bool:  # no seed: six standard errors
        return abs(float(torch.corrcoef(torch.stack([first, other]))[0, 1])) < 6 / math.sqrt(len(first))

    one, two = real(tmp_path / "one", images), real(tmp_path / "two", images)
    first = noise(one, omega)
    assert abs(float(first.std()) - 1.0) < 6 / math.sqrt(2 * len(first))
    for again in (one, real(tmp_path / "one", images)):  # the same process, and the next one
        assert torch.equal(noise(again, omega), first), "drawn anew, an average would show the change"
    assert charged() == 1
    assert unlike(noise(two, omega)) and unlike(noise(one, omega + 1))
    assert charged() == 2


def test_the_same_message_after_the_images_changed_is_charged_and_has_other_noise(
    tiny: Tiny, images: Path, tmp_path: Path
) -> None:
    """With the old noise, the difference of the two answers would be the new image."""
    parts = tiny(privacy__clip=1e-6, privacy__noise=1e6)
    asked = message(parts, parts.network.snapshot())
    first = real(tmp_path / "s", images).answer(*asked)
    np.savez(images, images=tiny().federation.samples.data[:21].numpy())
    second = real(tmp_path / "s", images).answer(*asked)
    noises = torch.stack([unpack(reply["answers"][0]["tensors"], up)["psi"] for reply, up in (first, second)])
    assert abs(float(torch.corrcoef(noises)[0, 1])) < 6 / math.sqrt(noises.shape[1])  # six standard errors
    assert json.loads((tmp_path / "s" / "privacy.json").read_text())["updates"] == [
        {"noise": 1e6, "unit": "site", "group": 1, "count": 2}
    ]
    (tmp_path / "s" / "answer.safetensors").write_bytes(b"damaged")
    real(tmp_path / "s", images).answer(*asked)
    assert json.loads((tmp_path / "s" / "privacy.json").read_text())["updates"][0]["count"] == 3, "rather twice"


def test_a_site_without_the_right_images_says_so(tiny: Tiny, images: Path, tmp_path: Path) -> None:
    parts = tiny()
    np.savez(tmp_path / "color.npz", images=np.zeros((3, 3, 28, 28), np.uint8))
    for name, data in (("s1", tmp_path / "color.npz"), ("s2", tmp_path / "gone.npz")):
        reply, _ = real(tmp_path / name, data).answer(*message(parts, parts.network.snapshot()))
        assert reply["answers"] == [{"client": 1, "code": "E417.data"}]


REFUSED: dict[str, tuple[dict[str, Any], dict[str, float], str]] = {
    "too little noise": ({}, {"min_noise": 0.5}, "E417.privacy"),
    "too long a clip": ({"privacy__clip": 2.0}, {"max_clip": 1.0}, "E417.privacy"),
    "a method that needs labels": ({"method__name": "all-labels"}, {}, "E417.config"),
    "training that diverges": (
        {"privacy__clip": 1.0, "privacy__noise": 0.5, "client__lr": 1e6, "client__clip": 0.0, "client__epochs": 9},
        {"min_noise": 0.5, "max_clip": 1.0},
        "E408",
    ),
}


@pytest.mark.parametrize(("changes", "terms", "code"), REFUSED.values(), ids=REFUSED)
def test_a_site_sends_a_code_and_nothing_else(
    tiny: Tiny, images: Path, tmp_path: Path, changes: dict[str, Any], terms: dict[str, float], code: str
) -> None:
    parts = tiny(**changes)
    reply, up = real(tmp_path / "s", images, **terms).answer(*message(parts, parts.network.snapshot()))
    assert reply["answers"] == [{"client": 1, "code": code}] and not up


def _last(value: float) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda payload: payload["omega"].__setitem__(-1, value)


@pytest.mark.parametrize(
    "change",
    [*map(_last, (-math.inf, math.inf, math.nan, 1e30)), lambda p: p.pop("omega"),
     lambda p: p.update(omega=p["omega"][:-1])],
)  # fmt: skip
def test_a_payload_out_of_bounds_or_of_another_form_is_refused(
    tiny: Tiny, images: Path, tmp_path: Path, change: Any
) -> None:
    """One −inf in the last bias made the norm NaN, and min(1, clip / NaN) is 1: the clear change left."""
    parts = tiny(privacy__clip=1.0)
    head, _ = message(parts, parts.network.snapshot())
    payload = dict(parts.algorithm.broadcast(parts.algorithm.start(parts.network.snapshot()), 1))
    change(payload)
    index, content = pack({"x": payload})
    head["jobs"] = [{"client": 1, "tensors": index["x"]}]
    reply, up = real(tmp_path / "s", images, max_clip=1.0).answer(head, content)
    assert reply["answers"] == [{"client": 1, "code": "E419"}] and not up


@pytest.mark.parametrize("run", ["../../up", "a/b", "", "x" * 65, 7, None])
def test_a_message_that_names_odd_files_or_a_client_twice_is_refused(
    tiny: Tiny, images: Path, tmp_path: Path, run: object
) -> None:
    """A run's name is part of file names; two answers of one client would be drawn with one noise."""
    parts = tiny()
    head, content = message(parts, parts.network.snapshot())
    spoiled = {"jobs": head["jobs"] * 2} if run is None else {"run": run}
    with pytest.raises(FedfewError, match="E419"):
        real(tmp_path / "s", images).answer(head | spoiled, content)


def test_a_site_counts_its_updates_over_runs_and_refuses_beyond_its_budget(
    tiny: Tiny, images: Path, tmp_path: Path
) -> None:
    parts = tiny(privacy__clip=1.0, privacy__noise=4.0)
    omega = parts.network.snapshot()
    most = epsilon({4.0: 2}, 1e-5) * 1.01

    def ask(run: str, round: int) -> Any:
        site = real(tmp_path / "s", images, max_epsilon=most)  # a new process each time: the account is on disk
        head, content = message(parts, omega, round)
        return site.answer(head | {"run": run}, content)

    def passed(reply: Any) -> bool:
        return "tensors" in reply[0]["answers"][0]

    assert passed(ask("first", 0)) and passed(ask("second", 0))
    assert passed(ask("second", 0)), "the same update again shows nothing new"
    reply, up = ask("second", 1)
    assert reply["answers"] == [{"client": 1, "code": "E420"}] and not up
    clear = tiny(privacy__clip=1.0)
    head, content = message(clear, omega, 5)
    reply, _ = real(tmp_path / "s", images, max_epsilon=1e9).answer(head, content)
    assert reply["answers"][0]["code"] == "E420", "without noise ε has no bound"
    (tmp_path / "s" / "privacy.json").write_text("{")
    assert ask("third", 0)[0]["answers"][0]["code"] == "E420", "an account that cannot be read is no empty one"


def test_an_account_knows_what_each_noise_hides(tmp_path: Path) -> None:
    """A site whose ε is of all its images, or of larger groups, does not continue an account of single images."""
    image, whole = Privacy(noise=8.0, unit="image"), Privacy(clip=1.0, noise=8.0)
    most = epsilon({16.0: 2, 8.0: 1}, 1e-5)
    account = PrivacyBudget(tmp_path / "privacy.json", most * 1.001, unit="image")
    for privacy in (image, image, whole):  # noise for all images hides each one, with half of its deviation
        account.charge(privacy)
    with pytest.raises(FedfewError, match="E420"):
        account.charge(image)
    PrivacyBudget(account.path, epsilon({16.0 / 3: 3, 8.0: 1}, 1e-5) * 1.001, unit="image").charge(
        replace(image, group=3)
    )  # the answers before it hide three images less well than one
    with pytest.raises(FedfewError, match="does not count for all images"):
        PrivacyBudget(account.path, 1e9).charge(whole)
    with pytest.raises(FedfewError, match="E420"):
        PrivacyBudget(account.path, 1e9, unit="image").charge(Privacy(clip=1.0))
    PrivacyBudget(account.path).charge(whole)  # without a limit it only counts
    for unit, noise in (("image", 16.0), ("site", 8.0)):  # as an earlier version wrote it
        account.path.write_text(json.dumps({"unit": unit, "updates": [{"noise": noise, "count": 2}]}))
        most = epsilon({noise: 2, 8.0: 1} if unit == "image" else {noise: 3}, 1e-5)
        with pytest.raises(FedfewError, match="E420"):
            PrivacyBudget(account.path, most * 0.999, unit=unit).charge(whole)
        PrivacyBudget(account.path, most * 1.001, unit=unit).charge(whole)


HOSTILE_CONFIGS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"method__name": "fedmatch"}, {"privacy": {"clip": 1.0, "noise": 0.5, "delta": 1e-5}}, "E417.config"),
    ({"method__name": "all-labels"}, {"privacy": {"clip": 1.0, "noise": 0.5, "delta": 1e-5}}, "E417.config"),
    ({}, {"privacy": {"clip": 1.0, "noise": math.nan, "delta": 1e-5}}, "E417.config"),
    ({}, {"model": {"name": "cnn", "width": 10**6}}, "E417.config"),
    ({}, {"dataset": {"name": "os:abort"}, "partition": {"kind": "os:abort"}}, ""),
]


@pytest.mark.parametrize(("given", "hostile", "code"), HOSTILE_CONFIGS)
def test_a_site_checks_the_servers_config_itself(
    tiny: Tiny, images: Path, tmp_path: Path, given: dict[str, Any], hostile: dict[str, Any], code: str
) -> None:
    """Noise does not cover every method: the shape of some replies follows the data."""
    parts = tiny(**given)
    head, content = message(parts, parts.network.snapshot())
    reply, up = real(tmp_path / "s", images).answer(head | {"config": head["config"] | hostile}, content)
    (answer,) = reply["answers"]
    assert answer.get("code", "") == code and bool(up) == (not code)


BEYOND: dict[str, tuple[dict[str, Any], dict[str, float], str]] = {
    "too few images": ({}, {"min_images": 21}, "E417.images"),
    "classes that would take gigabytes": ({"classes": 300_000_000}, {}, "E417.limits"),
    "no class": ({"classes": 0}, {}, "E417.limits"),
    "images of gigabytes": ({"samples": {"kind": "images", "shape": [3, 60_000, 60_000]}}, {}, "E417.limits"),
    "a shape of minus one": ({"samples": {"kind": "images", "shape": [1, -28, -28]}}, {}, "E417.limits"),
    "a smaller bound on weights": ({}, {"max_weight": 1e-3}, "E419"),
}


@pytest.mark.parametrize(("about", "terms", "code"), BEYOND.values(), ids=BEYOND)
def test_a_site_refuses_what_is_beyond_its_limits(
    tiny: Tiny, images: Path, tmp_path: Path, about: dict[str, Any], terms: dict[str, float], code: str
) -> None:
    """300 million classes took 5.7 GB before they failed."""
    parts = tiny()
    head, content = message(parts, parts.network.snapshot())
    reply, up = real(tmp_path / "s", images, **terms).answer(head | {"about": head["about"] | about}, content)
    assert reply["answers"] == [{"client": 1, "code": code}] and not up


def test_a_real_site_sends_no_class_sum_of_few_images_and_refuses_sharp_scores(
    tiny: Tiny, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the server's scores each of twenty images is of three classes to 0.5, 0.4 and 0.1: the third has two."""
    monkeypatch.setenv("FEDFEW_DATA", str(tmp_path / "data"))
    kept = {name: tiny().config.document[name] for name in ("dataset", "partition", "clients", "labels", "seed")}
    model = {"name": "efficientnet-lite0", "size": 32}
    parts = assemble(check(kept | {"model": model, "method": {"name": "fedmoments"}}))
    method, classes = parts.algorithm, parts.server.classes
    assert isinstance(method, FedMoments)
    shape, models = method.shape(classes, 1280), 1 + method.folds
    scores = torch.full((classes,), -1e3)
    scores[:3] = torch.tensor([0.5, 0.4, 0.1]).log()
    payload = {name: torch.zeros(form) for name, form in shape.sent.items()} | {
        "survey": torch.zeros(()), "scale": torch.ones(shape.width), "temperature": torch.ones(models),
        "bias": scores, "fold_bias": scores.repeat(method.folds, 1),
        "alpha": torch.full((models,), 1e6), "mix": torch.full((models, classes), 1 / classes),
    }  # fmt: skip

    def ask(asked: Payload, name: str, **terms: float) -> Any:
        index, content = pack({"x": asked})
        job = {"client": 1, "tensors": index["x"]}
        head = {"kind": "train", "round": 0, "jobs": [job]} | run_description(parts, "run")
        reply, up = real(tmp_path / name, images, **terms).answer(head, content)
        (answer,) = reply["answers"]
        return answer | ({"reply": unpack(answer["tensors"], up)} if "tensors" in answer else {})

    def counts(name: str, **terms: float) -> list[list[float]]:
        answer = ask(payload, name, **terms)
        update = ClientUpdate(1, answer["reply"], answer["examples"])
        decoded = parts.wire.decode(update, payload, parts.network.layout)
        assert Gate().check(decoded, payload, method.reply_schema(parts.network.layout), 20) is None
        return [sums.counts[:4].tolist() for sums in shape.read(decoded.reply["sums"])]

    assert counts("all", min_class=0) == [pytest.approx([10, 8, 2, 0], abs=1e-3)] * models
    assert counts("default") == [pytest.approx([20 * 5 / 9, 20 * 4 / 9, 0, 0], abs=1e-3)] * models
    assert counts("nine", min_class=9) == [pytest.approx([10, 0, 0, 0], abs=1e-3)] * models
    for name, value in (
        ("weight", 1e5 * torch.eye(shape.width)[:, :classes]), ("fold_weight", torch.zeros(9, 9, 9)),
        ("scale", torch.ones(20, shape.width)), ("mix", -payload["mix"]),
    ):  # fmt: skip
        assert ask(payload | {name: value}, name) == {"client": 1, "code": "E419"}


def test_a_clients_memory_is_that_of_before_the_round(tmp_path: Path) -> None:
    memory = Memory(tmp_path, "run", 3)
    assert memory.before(0) == {}
    for t in range(5):
        memory.write(t, {"x": torch.full((2,), float(t))})
    assert memory.before(4)["x"].tolist() == [3.0, 3.0]
    assert len(list(tmp_path.iterdir())) == 3
    memory.write(3, {"x": torch.full((2,), 9.0)})  # the server fell back to round 3: round 4 never was
    assert memory.before(5)["x"].tolist() == [9.0, 9.0] and memory.before(3)["x"].tolist() == [2.0, 2.0]
    assert Memory(tmp_path, "another", 3).before(9) == {}


def test_a_run_gets_as_many_answers_as_the_site_gives(tiny: Tiny, images: Path, tmp_path: Path) -> None:
    """Whatever run and number of a round the server names, and over restarts of the site."""
    parts = tiny()
    omega = parts.network.snapshot()

    def ask(change: float, run: str = "one", **config: Any) -> Any:
        head, content = message(parts, omega + change, round=0)
        head["config"] |= config
        return real(tmp_path / "s", images, max_rounds=2).answer(head | {"run": run}, content)[0]["answers"][0]

    assert "tensors" in ask(0.0) and "tensors" in ask(0.1)
    assert ask(0.2) == ask(0.2, run="two") == {"client": 1, "code": "E417.limits"}
    assert "tensors" in ask(0.2, run="two", seed=99), "another plan"


def test_limits_come_from_the_sites_file_and_options_come_first(tmp_path: Path) -> None:
    (tmp_path / LIMITS).write_text("min_images = 50\nmax_clip = 2.0\n")
    terms = site_terms(tmp_path, {"max_clip": 1.0, "min_noise": None, "allow_code": ()})
    assert terms == SiteTerms(min_images=50, max_clip=1.0)
    for wrong in ("min_image = 50", "min_images = 0", "max_memory = 'all'", "min_images ="):
        (tmp_path / LIMITS).write_text(wrong)
        with pytest.raises(FedfewError, match="E511"):
            site_terms(tmp_path)


def test_the_process_of_a_site_cannot_take_more_memory_than_allowed() -> None:
    code = "import torch; from fedfew.deploy.site.limits import bound_memory; bound_memory(1.0); torch.ones({})"
    small, large = (subprocess.run([sys.executable, "-c", code.format(n)], capture_output=True) for n in (10**7, 10**9))
    assert small.returncode == 0 and large.returncode != 0


def test_the_ledger_says_under_which_limits_an_answer_was_given(tiny: Tiny, images: Path, tmp_path: Path) -> None:
    parts = tiny()
    head, content = message(parts, parts.network.snapshot())
    server, own = socket.socketpair()
    with server, own:
        send(server, encode(json.dumps(head), content))
        threading.Thread(target=receive, args=(server,)).start()
        _exchange(real(tmp_path / "s", images, min_images=7), own)
    lines = [json.loads(line) for line in (tmp_path / "s" / "ledger.jsonl").read_text().splitlines()]
    assert lines[-1]["limits"]["min_images"] == 7 and lines[-1]["limits"]["min_class"] == 5


def test_a_real_site_answers_from_its_table_whatever_else_is_in_it(tmp_path: Path) -> None:
    """It sends the sums that the same rows give in a simulation; a label, another column and a hostile encoder do not
    matter, and a table of another width is refused."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 2)).round(3)
    lines = [f"{a},{b},{'xy'[i % 2]},{'server' if i < 30 else 'client'}" for i, (a, b) in enumerate(x)]
    (tmp_path / "all.csv").write_text("\n".join(["a,b,label,split", *lines]))
    (tmp_path / "site.csv").write_text(
        "\n".join(["name,b,label,a", *(f"p{i},{b},x,{a}" for i, (a, b) in enumerate(x[30:]))])
    )
    table = {"rounds": 2, "dataset": {"name": "vectors", "path": str(tmp_path / "all.csv"), "validation": 0}}
    parts = assemble(check(table | {"model": {"name": "linear"}, "method": {"name": "fedmatch"}}))
    site = real(tmp_path / "s", tmp_path / "site.csv")
    head, content = message(parts, parts.network.snapshot())
    (answer,) = site.answer(head, content)[0]["answers"]
    assert answer["examples"] == 60
    loaded = load_samples(tmp_path / "site.csv", head["about"]["samples"])
    assert torch.equal(loaded.data, parts.federation.samples.data)

    for spoil in ({"mean": [0.0]}, {"weight": [math.inf, 1.0]}):
        wrong = head["about"]["samples"] | {"encoder": head["about"]["samples"]["encoder"] | spoil}
        bad = head | {"run": "bad", "about": head["about"] | {"samples": wrong}}
        assert "code" in site.answer(bad, content)[0]["answers"][0]
    (tmp_path / "site.csv").write_text("b,label\n1,x\n")
    other = real(tmp_path / "t", tmp_path / "site.csv")
    assert "code" in other.answer(head | {"run": "other"}, content)[0]["answers"][0]


def test_a_real_site_answers_from_a_parquet_of_texts(tmp_path: Path, encoder: str) -> None:  # noqa: F811
    texts = {"text": ["heart pulse"] * 12 + ["bone wrist"] * 12, "finding": ["of nobody's business"] * 24}
    pandas.DataFrame(texts).to_parquet(tmp_path / "notes.parquet")
    dataset = {"name": "text", "path": str(notes(tmp_path / "all.csv")), "validation": 0}
    model = {"name": "sentence", "source": encoder}
    parts = assemble(check({"rounds": 2, "dataset": dataset, "model": model, "method": {"name": "fedmatch"}}))
    head, content = message(parts, parts.network.snapshot())
    site = real(tmp_path / "s", tmp_path / "notes.parquet", allow_code=(encoder,))  # type: ignore[arg-type]
    (answer,) = site.answer(head, content)[0]["answers"]
    assert answer["examples"] == 24
    pandas.DataFrame({"note": texts["text"]}).to_parquet(tmp_path / "other.parquet")
    other = real(tmp_path / "t", tmp_path / "other.parquet", allow_code=(encoder,))  # type: ignore[arg-type]
    (refused,) = other.answer(head, content)[0]["answers"]
    assert refused["code"] == "E417.data", "it has no column of this name"


def test_the_doctor_reads_a_folder_of_texts_and_takes_no_readme_for_data(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number}.txt").write_text("pain in the wrist")
    assert _site_step(tmp_path, SiteTerms()) == f"20 files in {tmp_path}"
    with pytest.raises(FedfewError, match="E417"):
        _site_step(tmp_path, SiteTerms(min_images=21))
    (tmp_path / "images").mkdir()
    for name in ("README.txt", "a.png"):
        (tmp_path / "images" / name).write_text("no image")
    assert own_rows(tmp_path / "images") == []
