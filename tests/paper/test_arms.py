"""The paper's figures as cells: the right arms, one recipe for all of them, and no run made twice."""

import json
from pathlib import Path
from typing import Any

import pytest
from paper.arms import (
    IID,
    LABELS,
    LEVELS,
    MIXES,
    NON_IID,
    PAPER,
    Arm,
    Plan,
    arms_of,
    cells,
    chosen,
    config_of,
    folder_of,
    in_order,
)
from paper.measures import Verdict
from paper.page import better_server, claims_table, put, section
from paper.results import ArmResult, curves_csv, known_plans, level, remember, results, table_csv
from tests.runtime.tiny_run import TINY, tiny
from tests.studies.runs_by_hand import by_hand, flat

from fedfew.config import toml
from fedfew.core.errors import FedfewError
from fedfew.runs.run import Run
from fedfew.studies.sweep import advance

TUNED = Plan("paper-tuned", "laptop", 1)


@pytest.fixture
def preset(tmp_path: Path) -> str:
    path = tmp_path / "tiny.toml"
    path.write_text(toml.dumps(TINY), "utf-8")
    return str(path)


def configs(figure: str, plan: Plan = TUNED) -> dict[tuple[str, str], dict[str, Any]]:
    return {key: cell.config.document for (key, _), cell in cells(plan, [figure])[figure].items()}


def test_figure_4_has_both_methods_both_rules_and_both_bounds_in_both_settings() -> None:
    found = configs("fig4")
    named = {
        (key[0], c["method"]["name"], c["aggregator"]["name"], c["partition"]["kind"])
        for key, c in found.items()
        if c["method"]["name"] in ("fedmix", "fedmatch")
    }
    kinds = {IID: "iid", NON_IID: "dirichlet"}
    assert named == {
        (panel, method, rule, kinds[panel])
        for panel in kinds
        for method in ("fedmix", "fedmatch")
        for rule in ("fedavg", "fedfreq")
    }
    assert {c["method"]["name"] for c in found.values()} == {
        "fedmix",
        "fedmatch",
        "server-only",
        "all-labels",
        "pooled",
    }
    assert found[IID, "FedAvg with true labels"]["partition"]["kind"] == "iid"
    assert {c["partition"].get("mu") for key, c in found.items() if key[0] == NON_IID} == {0.1}


def test_figures_5_and_6_vary_what_they_are_about() -> None:
    mixes = {
        tuple(c["method"][name] for name in ("alpha", "beta", "gamma")): c["partition"]["kind"]
        for c in configs("fig5").values()
        if c["method"]["name"] == "fedmix"
    }
    assert set(mixes) == set(MIXES)
    assert (0.5, 0.3, 0.2) in MIXES
    levels = [c["partition"]["mu"] for c in configs("fig6a").values() if c["method"]["name"] == "fedmix"]
    assert levels == list(LEVELS) == [0.1, 1.0, 10.0, 100.0]
    labels = [(c["method"]["name"], c["labels"]) for c in configs("fig6b").values()]
    assert labels == [(m, n) for n in LABELS for m in ("fedmix", "fedmatch", "server-only")]
    assert LABELS == (700, 800, 900, 1000)
    rules = [c["aggregator"]["name"] for c in configs("extra").values() if c["availability"]["kind"] == "zipf"]
    assert rules == ["fedfreq", "fedavg", "uniform"]


@pytest.mark.parametrize("name", ["paper-literal", "paper-tuned", "reference-code"])
@pytest.mark.parametrize("figure", PAPER)
def test_the_servers_recipe_is_the_same_in_every_arm(figure: str, name: str) -> None:
    found = configs(figure, Plan(name, "laptop", 1)).values()
    recipes = {json.dumps([c["server"], c["method"]["lambda_s"], c["model"], c["rounds"]]) for c in found}
    assert len(recipes) == 1
    assert {c["model"]["width"] for c in found} == {16}
    assert {c["dataset"]["unlabeled"] for c in found} == {11_000}


def test_a_run_that_several_figures_need_is_made_once() -> None:
    planned = cells(TUNED, list(PAPER))
    everything = [cell.identity for own in planned.values() for cell in own.values()]
    once = in_order(planned)
    assert len(once) == len({cell.identity for cell in once}) == len(set(everything)) == 47
    assert len(everything) == 63

    def identity(figure: str, label: str, panel: str = "") -> str:
        return planned[figure][(panel, label), 0].identity

    ours = identity("fig4", "FedMix + FedFreq", NON_IID)
    assert ours == identity("fig6a", "μ = 0.1") == identity("fig6b", "FedMix, 1000 labels")
    assert ours == identity("fig5", "α=0.5 β=0.3 γ=0.2", NON_IID)
    assert identity("fig4", "server-only", IID) == identity("fig4", "server-only", NON_IID)
    assert len({cell.folder for cell in once}) == 47


def test_only_the_arms_asked_for_are_made_in_that_order() -> None:
    planned = cells(TUNED, ["fig4"])
    few = in_order(chosen(planned, ["fig4"], ["non-IID server-only", "non-IID FedMix", "IID server-only"]))
    assert [(c.config["method.name"], c.config["aggregator.name"]) for c in few] == [
        ("server-only", "uniform"), ("fedmix", "fedavg"), ("fedmix", "fedfreq"),
    ]  # fmt: skip
    with pytest.raises(FedfewError, match=r"E105.*no arm's title begins with 'FedMx'"):
        chosen(planned, ["fig4"], ["FedMx"])


def test_groupnorm_is_the_row_of_figure_4_but_for_the_norm() -> None:
    plain, norm = configs("fig4"), configs("groupnorm")
    for (_, label), config in norm.items():
        other = plain[NON_IID, label]
        assert config["model"] | {"norm": "none"} == other["model"] and config["model"]["norm"] == "group"
        assert {k: v for k, v in config.items() if k != "model"} == {k: v for k, v in other.items() if k != "model"}


def test_recipe_is_the_row_of_figure_4_with_another_server() -> None:
    plain, best = configs("fig4"), configs("recipe")
    assert {label for _, label in best} == {label for _, label in configs("groupnorm")}
    for (_, label), config in best.items():
        other = plain[NON_IID, label]
        keys = {key for key in config if config[key] != other[key]}
        assert keys == ({"server", "client", "method"} if label == "FedMix + FedFreq" else {"server"}), label
    assert len({tuple(config["server"].items()) for config in best.values()}) == 1, "one recipe for all"


def test_the_ablation_varies_gamma_alone() -> None:
    found = [c["method"] for c in configs("ablation").values() if c["method"]["name"] == "fedmix"]
    assert [m["gamma"] for m in found] == [0.0, 0.2, 0.6]
    assert [m["alpha"] / m["beta"] for m in found] == pytest.approx([5 / 3] * 3)
    shared = cells(TUNED, ["fig4", "ablation"])
    assert len(in_order(shared)) == len(in_order({"fig4": shared["fig4"]})) + 2


def test_the_first_seed_of_all_comes_before_the_second() -> None:
    once = in_order(cells(Plan("paper-tuned", "laptop", 3), ["fig6a", "extra"]))
    seeds = [cell.config["seed"] for cell in once]
    assert seeds == sorted(seeds)
    assert set(seeds) == {0, 1, 2}
    fresh = in_order(cells(Plan("paper-tuned", "laptop", 2, first_seed=10), ["fig6a"]))
    assert {cell.config["seed"] for cell in fresh} == {10, 11}
    assert all(cell.config["dataset.seed"] == cell.config["seed"] for cell in once)


def test_set_reaches_the_arms_it_concerns() -> None:
    plan = Plan("paper-tuned", "laptop", 1, {"rounds": 2, "method.threshold": 0.9, "method.lambda_i": 0.5})
    found = configs("fig4", plan)
    assert {c["rounds"] for c in found.values()} == {2}
    assert found[IID, "FedMix + FedAvg"]["method"]["threshold"] == 0.9
    assert found[IID, "FedMatch + FedAvg"]["method"]["threshold"] == 0.9
    assert found[IID, "FedMatch + FedAvg"]["method"]["lambda_i"] == 0.5
    assert "lambda_i" not in found[IID, "FedMix + FedAvg"]["method"]
    assert configs("fig4")[IID, "FedMatch + FedAvg"]["method"]["threshold"] == 0.75
    assert configs("fig4")[IID, "FedMix + FedAvg"]["method"]["threshold"] == 0.8


def test_what_makes_the_arm_is_not_overridden() -> None:
    plan = Plan("paper-tuned", "laptop", 1, {"partition.mu": 5.0, "labels": 50, "method.name": "fedprox"})
    assert [c["partition"]["mu"] for c in configs("fig6a", plan).values()][:4] == list(LEVELS)
    assert {c["labels"] for c in configs("fig6b", plan).values()} == set(LABELS)
    assert {c["labels"] for c in configs("fig6a", plan).values()} == {50}
    assert configs("fig4", plan)[NON_IID, "FedMix + FedAvg"]["partition"]["mu"] == 5.0
    assert "mu" not in configs("fig4", plan)[IID, "FedMix + FedAvg"]["partition"]


def test_misspelt_keys_seeds_and_figures_are_refused() -> None:
    with pytest.raises(FedfewError, match=r"E104.*method\.lambda_anchor"):
        cells(Plan("paper-tuned", None, 1, {"method.lambda_ancor": 1.0}), ["fig5"])
    for key in ("seed", "dataset.seed"):
        with pytest.raises(FedfewError, match=r"E113.*--seeds"):
            cells(Plan("paper-tuned", None, 1, {key: 1}), ["fig5"])
    with pytest.raises(FedfewError, match=r"E105.*fig6a"):
        arms_of("fig7")


def test_folders_of_different_plans_differ() -> None:
    assert folder_of(TUNED) == Path("runs/reproduce-paper-tuned-laptop")
    assert folder_of(Plan("paper-tuned", None, 1, {"rounds": 2})) == Path("runs/reproduce-paper-tuned-full-rounds2")


def test_results_take_unfinished_runs_only_while_there_is_no_finished_one(tmp_path: Path, preset: str) -> None:
    plan = Plan(preset, None, 2, {"rounds": 2})
    planned = cells(plan, ["extra"])["extra"]
    first, second = (planned[("", "FedMix + FedFreq"), seed] for seed in (0, 1))

    def told(fault: FedfewError) -> None:
        raise AssertionError(fault)

    rounds = advance([first], tmp_path / "runs", told)
    next(rounds)
    next(rounds)
    rounds.close()
    found = results(plan, "extra", tmp_path)["", "FedMix + FedFreq"]
    assert [run.done for run in found.runs] == [1]
    assert found.partial
    assert not found.finished
    list(advance([second], tmp_path / "runs", told))
    found = results(plan, "extra", tmp_path)["", "FedMix + FedFreq"]
    assert [(run.seeds, run.done) for run in found.runs] == [((1, 1), 2)]
    assert not found.partial
    assert not found.finished  # one of the two seeds is still missing
    list(advance([first], tmp_path / "runs", told))
    found = results(plan, "extra", tmp_path)["", "FedMix + FedFreq"]
    assert found.finished
    values = [Run.open(run.path).accuracy() for run in found.runs]
    assert mean_of(found) == pytest.approx(sum(v for v in values if v is not None) / 2)
    assert results(plan, "extra", tmp_path)["", "FedMix + FedAvg"].runs == ()


def test_plans_are_remembered_figure_by_figure(tmp_path: Path) -> None:
    remember(tmp_path, ["fig4"], TUNED, "python -m paper fig4")
    other = Plan("paper-literal", None, 3, {"rounds": 2})
    remember(tmp_path, ["fig5", "extra"], other, "python -m paper all")
    assert known_plans(tmp_path) == {
        "fig4": (TUNED, "python -m paper fig4"),
        "fig5": (other, "python -m paper all"),
        "extra": (other, "python -m paper all"),
    }
    with pytest.raises(FedfewError, match="E302"):
        known_plans(tmp_path / "nowhere")
    (tmp_path / "reproduce.json").write_text('{"fig4": 3}', "utf-8")
    with pytest.raises(FedfewError, match="E309"):
        known_plans(tmp_path)


def mean_of(arm: ArmResult) -> float:
    assert arm.accuracy is not None
    return arm.accuracy.mean


def arm_result(*runs: Run, label: str = "μ = 1", wanted: int = 0) -> ArmResult:
    return ArmResult(Arm("", label, {}), runs, wanted or len(runs))


def test_runs_that_were_cut_short_are_compared_at_the_same_round() -> None:
    long, short = by_hand([0.1, 0.2, 0.9, 0.9], finished=False), by_hand([0.3, 0.4], finished=False)
    arms = {("", "a"): arm_result(long), ("", "b"): arm_result(short)}
    even = level(arms)
    assert [even["", name].row()["rounds"] for name in "ab"] == [2, 2]
    assert [len(even["", name].runs[0].records) for name in "ab"] == [4, 2]  # curves are drawn whole
    assert mean_of(even["", "a"]) == pytest.approx(0.2)
    done = {("", "a"): arm_result(by_hand([0.1, 0.2])), ("", "b"): arm_result(by_hand([0.3] * 4))}
    assert level(done) is done  # other lengths by choice
    mixed = level({("", "a"): arm_result(by_hand([0.5, 0.6, 0.7])), ("", "b"): arm_result(short)})
    assert mean_of(mixed["", "a"]) == pytest.approx(0.6)
    assert mixed["", "a"].partial


def test_csvs_hold_every_round_and_every_arm() -> None:
    found = {("", "μ = 1"): arm_result(flat(0.4, seed=0), flat(0.6, seed=1))}
    lines = curves_csv(found).decode().splitlines()
    assert lines[0] == "panel,arm,seed,finished,round,accuracy,validation,loss,coverage,correct"
    assert len(lines) == 1 + 2 * 3
    assert lines[4].startswith(",μ = 1,1,True,1,0.6,0.6,1.0")
    table = table_csv(found).decode().splitlines()
    assert table[1].startswith(",μ = 1,0.5,0.1414")


def test_a_section_says_what_was_run_and_what_was_cut_short() -> None:
    done, cut = flat(0.4, seed=0), by_hand([0.1, 0.2], seed=1, finished=False, name="cut")
    text = section("fig6a", "python -m paper fig6a", {
        ("", "μ = 1"): arm_result(done, wanted=2), ("", "μ = 10"): arm_result(cut, label="μ = 10"),
        ("", "μ = 100"): arm_result(label="μ = 100"),
    }, [Verdict("a", "b", "–", "no runs yet", "")], {("", "μ = 1"): "+1.0 (SE 0.5), better"}, "results/fig6a.svg",
        ["results/fig6a.csv"])  # fmt: skip
    assert "`python -m paper fig6a`" in text
    assert "torch 2.13.0" in text
    assert "seeds 0, 1" in text
    assert "cut at round 2 of 7" in text
    assert "fewer seeds than planned for μ = 1." in text
    assert "not run yet: μ = 100." in text and "| μ = 100" not in text
    assert "1 more claim cannot be judged without the missing runs." in text
    assert "| μ = 1 | 40.0 % | +1.0 (SE 0.5), better | 40.0 % | 1 | 3 | 0 |" in text
    assert "**2 of 7**" in text
    assert "55,000 images" in text  # a smaller run says what the paper had


def test_a_table_says_if_the_labels_alone_do_better_with_another_recipe() -> None:
    here = [flat(0.40, seed=seed, method__name="server-only") for seed in (0, 1)]
    strong: dict[str, Any] = {"method__name": "server-only", "server__augment": "strong"}
    best = [flat(0.45, seed=0, **strong), flat(0.47, seed=1, **strong), flat(0.99, seed=2, **strong)]
    found = {("", "server-only"): arm_result(*here, wanted=2, label="server-only")}
    note = better_server(found, [*here, *best])
    assert note == (
        "**Not the best server:** with `server.augment = strong` the labels alone reach 46.0 % "
        "where server-only training has 40.0 % here (2 seeds)."
    )
    assert note in section("fig4", "", found, [], {}, "a.svg", [], note)
    elsewhere = flat(0.9, seed=0, labels=60, **strong)
    assert not better_server(found, [*here, flat(0.405, seed=0, **strong), elsewhere])


def test_a_page_keeps_what_others_wrote(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "understand" / "results.md"
    put(page, {"fig4": "first\n"})
    page.write_text(page.read_text("utf-8") + "\nwritten by hand\n", "utf-8")
    put(page, {"fig5": "five\n"})
    put(page, {"fig4": "second \\1\n"})
    text = page.read_text("utf-8")
    assert "first" not in text
    assert "<!-- begin fig4 -->\nsecond \\1\n<!-- end fig4 -->" in text
    assert "written by hand" in text
    assert text.index("written by hand") < text.index("five")
    put(page, {"fig4": "second \\1\n"})
    assert page.read_text("utf-8") == text


def test_claims_in_a_table_cannot_break_it() -> None:
    text = claims_table(
        [Verdict("a | b", "Fig. 4", "1", "yes", "fine", partial=True), Verdict("c", "d", "–", "no runs yet", "")]
    )
    assert "a \\| b (Fig. 4)" in text
    assert "**so far: yes**. fine." in text
    assert "**no runs yet**." in text


def test_config_of_an_arm_is_checked(preset: str) -> None:
    config = config_of(Plan(preset, None, 1), arms_of("extra")[0], 4)
    assert (config["seed"], config["dataset.seed"]) == (4, 4)
    assert config["model"] == tiny()["model"]
