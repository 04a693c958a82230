"""The paper's figures as cells: the right arms, one recipe for all of them, and no run made twice."""

import json
from itertools import product
from typing import Any

import pytest
from paper.arms import IID, LABELS, LEVELS, MIXES, NON_IID, PAPER
from paper.plan import Plan, cells, chosen, in_order

from fedfew.core.errors import FedfewError

TUNED = Plan("paper-tuned", "laptop", 1)


def configs(figure: str, plan: Plan = TUNED) -> dict[tuple[str, str], dict[str, Any]]:
    return {key: cell.config.document for (key, _), cell in cells(plan, [figure])[figure].items()}


def test_figure_4_has_both_methods_both_rules_and_both_bounds_in_both_settings() -> None:
    arms, kinds, rules = configs("fig4"), {IID: "iid", NON_IID: "dirichlet"}, ("fedavg", "fedfreq")
    named = {(key[0], c["method"]["name"], c["aggregator"]["name"]) for key, c in arms.items()}
    assert named == {
        *product(kinds, ("fedmix", "fedmatch"), rules),
        *product(kinds, ("server-only", "pooled"), ("uniform",)),
        *product(kinds, ("all-labels",), ("fedavg",)),
    }
    split = [key for key, c in arms.items() if c["method"]["name"] not in ("server-only", "pooled")]
    assert all(arms[key]["partition"]["kind"] == kinds[key[0]] for key in split)
    assert {c["partition"].get("mu") for key, c in arms.items() if key[0] == NON_IID} == {0.1}


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
    arms = configs(figure, Plan(name, "laptop", 1)).values()
    recipes = {json.dumps([c["server"], c["method"]["lambda_s"], c["model"], c["rounds"]]) for c in arms}
    assert len(recipes) == 1
    assert {c["model"]["width"] for c in arms} == {16}
    assert {c["dataset"]["unlabeled"] for c in arms} == {11_000}


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
    few = in_order(chosen(planned, ["non-IID server-only", "non-IID FedMix", "IID server-only"]))
    assert [(c.config.method_name, c.config.document["aggregator"]["name"]) for c in few] == [
        ("server-only", "uniform"), ("fedmix", "fedavg"), ("fedmix", "fedfreq"),
    ]  # fmt: skip
    with pytest.raises(FedfewError, match=r"E105.*no arm's title begins with 'FedMx'"):
        chosen(planned, ["FedMx"])


def test_other_rows_are_that_of_figure_4_but_for_one_thing() -> None:
    plain, norm, best = configs("fig4"), configs("groupnorm"), configs("recipe")
    assert norm.keys() == best.keys()
    for key in norm:
        other = plain[NON_IID, key[1]]
        assert norm[key] | {"model": other["model"]} == other and norm[key]["model"]["norm"] == "group"
        changed = {section for section in other if best[key][section] != other[section]}
        assert changed == ({"server", "client", "method"} if key[1] == "FedMix + FedFreq" else {"server"}), key
    assert len({tuple(config["server"].items()) for config in best.values()}) == 1, "one recipe for all"


def test_the_ablation_varies_gamma_alone() -> None:
    arms = [c["method"] for c in configs("ablation").values() if c["method"]["name"] == "fedmix"]
    assert [m["gamma"] for m in arms] == [0.0, 0.2, 0.6]
    assert [m["alpha"] / m["beta"] for m in arms] == pytest.approx([5 / 3] * 3)
    shared = cells(TUNED, ["fig4", "ablation"])
    assert len(in_order(shared)) == len(in_order({"fig4": shared["fig4"]})) + 2


def test_the_first_seed_of_all_comes_before_the_second() -> None:
    once = in_order(cells(Plan("paper-tuned", "laptop", 3), ["fig6a", "extra"]))
    seeds = [cell.config.document["seed"] for cell in once]
    assert seeds == sorted(seeds)
    assert set(seeds) == {0, 1, 2}
    fresh = in_order(cells(Plan("paper-tuned", "laptop", 2, first_seed=10), ["fig6a"]))
    assert {cell.config.document["seed"] for cell in fresh} == {10, 11}
    assert all(cell.config.dataset.seed == cell.config.document["seed"] for cell in once)


def test_set_reaches_the_arms_it_concerns() -> None:
    plan = Plan("paper-tuned", "laptop", 1, {"rounds": 2, "method.threshold": 0.9, "method.lambda_i": 0.5})
    arms, plain = configs("fig4", plan), configs("fig4")
    mix, match = (IID, "FedMix + FedAvg"), (IID, "FedMatch + FedAvg")
    assert {c["rounds"] for c in arms.values()} == {2}
    assert [[table[key]["method"]["threshold"] for key in (mix, match)] for table in (arms, plain)] == [
        [0.9, 0.9], [0.8, 0.75],
    ]  # fmt: skip
    assert arms[match]["method"]["lambda_i"] == 0.5 and "lambda_i" not in arms[mix]["method"]


def test_what_makes_the_arm_is_not_overridden() -> None:
    plan = Plan("paper-tuned", "laptop", 1, {"partition.mu": 5.0, "labels": 50, "method.name": "fedprox"})
    assert [c["partition"]["mu"] for c in configs("fig6a", plan).values()][:4] == list(LEVELS)
    assert {c["labels"] for c in configs("fig6b", plan).values()} == set(LABELS)
    assert {c["labels"] for c in configs("fig6a", plan).values()} == {50}
    both = [configs("fig4", plan)[panel, "FedMix + FedAvg"]["partition"].get("mu") for panel in (IID, NON_IID)]
    assert both == [None, 5.0]
