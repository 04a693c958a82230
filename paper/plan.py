"""The figures that need runs, the arms of each, and from arms to runs: their configs and their order."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedfew.config.schema import load
from fedfew.config.tables import scaled
from fedfew.config.tree import Config
from fedfew.core.errors import FedfewError
from fedfew.studies.sweep import Cell
from paper.arms import BEST, PAPER, TITLES, Arm, Overrides
from paper.few import FEW, SETTINGS, SITES, few_labels

ArmKey = tuple[str, str]
Cells = dict[tuple[ArmKey, int], Cell]
"""The runs of a figure by arm and seed."""


@dataclass(frozen=True)
class Plan:
    """How the runs of a figure are made."""

    preset: str = "paper-tuned"
    scale: str | None = None
    seeds: int = 1
    overrides: Overrides = field(default_factory=dict)
    """``--set``: a setting that an arm's method does not have is not applied to that arm."""
    first_seed: int = 0


def _few_labels() -> list[Arm]:
    return [arm for setting in few_labels() for arm in setting.arms()]


def _sites() -> list[Arm]:
    return [arm for settings in SETTINGS.values() for setting in settings for arm in setting.arms()]


FIGURES = PAPER | {FEW: _few_labels, SITES: _sites}
"""In the order in which ``all`` runs them; Figure 3 needs no run."""


def arms_of(figure: str) -> list[Arm]:
    """The arms of a figure."""
    if figure not in FIGURES:
        raise FedfewError("E105", "figure", f"{figure!r} is unknown", f"Known: {', '.join(TITLES)}, all, report")
    return FIGURES[figure]()


def cells(plan: Plan, figures: Iterable[str]) -> dict[str, Cells]:
    """For each figure its runs; several figures can share one, if the experiment is the same."""
    for key in ("seed", "dataset.seed"):
        if key in plan.overrides:
            raise FedfewError("E113", f"--set {key}", "seeds have their own options", "Use --seeds and --first-seed")
    return {figure: _cells(plan, arms_of(figure)) for figure in figures}


def _cells(plan: Plan, arms: Sequence[Arm]) -> Cells:
    plain = {arm.key: load(arm.preset or plan.preset, arm.overrides, keep_settings=True).document for arm in arms}
    # a setting that no arm has is misspelt: every arm gets it, to be refused with a hint
    unknown = {path for path in plan.overrides if not any(_has(document, path) for document in plain.values())}
    planned: Cells = {}
    for seed in range(plan.first_seed, plan.first_seed + plan.seeds):
        for arm in arms:
            own = {k: v for k, v in plan.overrides.items() if k in unknown or _has(plain[arm.key], k)}
            config = config_of(plan, arm, seed, own)
            planned[arm.key, seed] = Cell(cell_name(config.document), config)
    return planned


def _has(document: Mapping[str, Any], path: str) -> bool:
    section, _, key = path.rpartition(".")
    return key in (document.get(section, {}) if section else document)


def config_of(plan: Plan, arm: Arm, seed: int, overrides: Overrides) -> Config:
    """The config of one run: preset, scale, the method's recipe, ``--set``, and last what defines the arm."""
    own = {**arm.recipe, **overrides, **arm.overrides, "seed": seed, "dataset.seed": seed}
    own |= {"dataset.draw": seed} if arm.draws else {}
    if arm.preset:
        return load(arm.preset, own, keep_settings=True)
    return load(plan.preset, scaled(plan.preset, plan.scale, own)[0], keep_settings=True)


def cell_name(document: Mapping[str, Any]) -> str:
    """A folder name that describes the run, the same in every figure."""
    method, partition = document["method"], document["partition"]
    words = [method["name"].rpartition(":")[2].lower(), document["aggregator"]["name"]]
    words += [name.rpartition(":")[2]] if ":" in (name := document["dataset"]["name"]) else []
    words += [f"mu{partition['mu']:g}" if "mu" in partition else partition["kind"], f"n{document['labels']}"]
    mix = tuple(method.get(letter) for letter in ("alpha", "beta", "gamma"))
    if method["name"] == "fedmix" and mix != BEST:
        words.append("mix" + "-".join(f"{part:g}" for part in mix))
    if document["availability"]["kind"] != "uniform":
        words.append(document["availability"]["kind"])
    return "-".join([*words, f"s{document['seed']}"])


def chosen(planned: Mapping[str, Cells], titles: Sequence[str]) -> dict[str, Cells]:
    """The cells of the arms whose title begins with one of these texts, in the order of the texts."""
    arms = [(figure, arm) for figure in planned for arm in arms_of(figure)]
    parts: dict[str, Cells] = {}
    for text in titles:
        keys = [(figure, arm.key) for figure, arm in arms if arm.title.startswith(text)]
        if not keys:
            known = ", ".join(dict.fromkeys(arm.title for _, arm in arms))
            raise FedfewError("E105", "--arm", f"no arm's title begins with {text!r}", f"Known: {known}")
        parts |= {
            f"{text} {figure}": {at: cell for at, cell in own.items() if (figure, at[0]) in keys}
            for figure, own in planned.items()
        }
    return parts


def in_order(planned: Mapping[str, Cells]) -> list[Cell]:
    """Every different cell once, the first seed of all figures before the second, so that all figures grow together."""
    once: dict[str, tuple[int, Cell]] = {}
    for own in planned.values():
        for (_, seed), cell in own.items():
            once.setdefault(cell.identity, (seed, cell))
    return [cell for _, cell in sorted(once.values(), key=lambda entry: entry[0])]


def folder_of(plan: Plan) -> Path:
    """The default folder of the runs."""
    words = [plan.preset.replace("/", "_").removesuffix(".toml"), plan.scale or "full"]
    words += [f"{key.rpartition('.')[2]}{value}" for key, value in plan.overrides.items()]
    return Path("runs") / ("paper-" + "-".join(map(str, words)))
