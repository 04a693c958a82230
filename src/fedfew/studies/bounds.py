"""Pairs a run with its bounds: the one rule by which comparisons, pages and reports judge a method."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import compress
from operator import ne
from typing import Any

from fedfew.core.errors import FedfewError
from fedfew.methods import METHODS
from fedfew.runs.run import BOUNDS, TITLES, Run
from fedfew.runs.summary import HEADLINE
from fedfew.transforms.norm_policy import MEASURED

METHOD, BASELINE, POOLED = "method.name", BOUNDS[0], BOUNDS[2]
NOT_ITS = (
    "partition.", "aggregator.", "availability.", "client.", "vote.", "objective.", "gate.", "participation", "clients",
    "client_labels.", "compression.", "privacy.", "evaluate.every", "evaluate.clients",
)  # fmt: skip
"""Keys without influence on server-only training, which uses no client."""
SCENARIO = ("labels", "rounds", "dataset.", "model.")
PASSES = ("participation", "client.epochs")
"""How often the clients' images are used; upper bounds depend on it too."""
RECIPE = ("server.", "method.lambda_s", "start", "evaluate.ema", "engine.autocast")
"""How the server trains, from where and in which precision, and which model is evaluated."""
UNSAID: dict[str, Any] = {"method.lambda_s": 1.0}
"""What methods without the key have."""
WARMUP, POLICY = "method.warmup", "norm.policy"
Flat = dict[str, Any]


def settings(run: Run) -> Flat:
    """A run's settings as dotted keys, without the fleet and without keys that do not affect its method."""
    skip = ("fleet.", *(NOT_ITS if run.method == BASELINE else () if has_objective(run.method) else ("objective.",)))
    unwanted = _beginning(tuple(run.flat), skip)
    return {key: value for key, value in run.flat.items() if key not in unwanted}


@lru_cache(256)
def _beginning(keys: tuple[str, ...], texts: tuple[str, ...]) -> dict[str, None]:
    """The keys that begin with one of these texts; thousands of runs have the same keys."""
    return dict.fromkeys(key for key in keys if key.startswith(texts))


def has_objective(method: str) -> bool:
    """Whether [objective] affects a method; one that is not built in may use it."""
    return method not in METHODS or _takes(method, "objective")


@cache
def _takes(method: str, part: str) -> bool:
    return METHODS[method].takes(part)


def varying(flats: Sequence[Flat]) -> list[str]:
    """The keys in which any two differ: with thousands of runs only these are compared further."""
    first = flats[0] if flats else {}
    keys, values = list(first), list(first.values())
    order, found = dict.fromkeys(keys), set[str]()
    for flat in flats:
        if list(flat) == keys:  # nearly always: compared without a step in Python for each key
            found.update(compress(keys, map(ne, flat.values(), values)))
        else:
            order |= dict.fromkeys(flat)
            found |= {key for key in flat.keys() | first.keys() if flat.get(key) != first.get(key)}
    return [key for key in order if key in found]


def hashable(flat: Flat, key: str) -> Any:
    """A setting's value in a form for sets and dict keys."""
    value = flat.get(key)
    return repr(value) if isinstance(value, list | dict) else value


def scenario(run: Run, bound: str = BOUNDS[1], keys: Iterable[str] = ()) -> str:
    """What two runs must share, apart from seeds, for their accuracies to be comparable.

    Server-only training does not depend on the clients. ``keys`` are further keys that must be equal.
    """
    asks, flat = bound != BASELINE, run.flat
    held = ("client_labels.",) if flat.get("client_labels.each") else ()
    wanted = (*SCENARIO, "clients", "partition.", *held) if asks else SCENARIO
    own = {key: flat[key] for key in _beginning(tuple(flat), wanted) if key != "dataset.seed"}
    # what other_recipe names is left to it
    skip = ("method.", "server.", "norm.", "seed", "dataset.seed", *(() if asks else NOT_ITS))
    return json.dumps(own | {key: flat.get(key) for key in keys if not key.startswith(skip)}, sort_keys=True)


def other_recipe(run: Run, other: Run) -> list[str]:
    """The keys in which the server's training differs, or the point at which a round is scored."""
    mine, its = ({**UNSAID, **r.flat} for r in (run, other))
    keys = [key for key, value in mine.items() if key.startswith(RECIPE) and value != its.get(key, value)]
    if _statistics(run) != _statistics(other):
        keys.append(POLICY)
    if abs(_epochs_before(run.flat) - _epochs_before(other.flat)) > run.flat["server.epochs"]:
        keys.append(WARMUP)  # one turn may differ: the server of some methods trains beside the clients
    return keys + (["method.order"] if _scored_before(run) or _scored_before(other) else [])


def _statistics(run: Run) -> str:
    """Whose images give the batch norm of the evaluated model, where they are measured after a round."""
    policy: str = run.flat.get(POLICY, "")
    return policy if policy in MEASURED else ""


def _scored_before(run: Run) -> bool:
    """Whether it is scored before the server's turn: by its order, or because early versions did so for this method.

    These methods (fedmatch, fedsiam, all-labels) had no warm-up then, so it is not among the settings on disk.
    """
    if run.flat.get("method.order") == "before":
        return True
    old = "warmup" not in run.document["method"]
    return old and run.method != BASELINE and run.method in METHODS and _takes(run.method, "warmup")


def _epochs_before(flat: Flat) -> int:
    """The server's epochs before the first round; most methods take a usual turn where no warm-up is set."""
    if WARMUP not in flat:
        return 0
    alone = flat[METHOD] in (BASELINE, POOLED)
    return int(flat[WARMUP] or (0 if alone else flat["server.epochs"]))


def same_recipe(run: Run, other: Run) -> bool:
    """Whether the server trains the same way in both, and both are scored after its turn."""
    return not other_recipe(run, other)


@dataclass(frozen=True, eq=False)
class Bound:
    """The runs of a bound that a run is compared with: the one with its seeds, or else all of its scenario."""

    name: str
    runs: tuple[Run, ...] = ()
    same_seed: bool = False
    differs: tuple[str, ...] = ()
    """The keys of the server's training in which one of them differs."""

    @property
    def title(self) -> str:
        return TITLES.get(self.name, self.name)

    @property
    def role(self) -> str:
        """What it bounds; empty if nothing: FedAvg with true labels pays for averaging."""
        return {BASELINE: "lower bound", POOLED: "upper bound"}.get(self.name, "")

    @property
    def apart(self) -> str:
        """Why a difference to it would mislead; empty if the two are a pair."""
        if self.runs and not self.same_seed:
            return "other seeds"
        return f"other {', '.join(self.differs)}" if self.differs else ""

    def accuracy(self, which: str = HEADLINE) -> float | None:
        """The mean over its runs; None if unknown."""
        known = [a for run in self.runs if (a := run.accuracy(which)) is not None]
        return sum(known) / len(known) if known else None

    @property
    def unfinished(self) -> bool:
        return any(not run.finished for run in self.runs)


class Pairing:
    """Finds the bound of any run among others; each of these is read once."""

    def __init__(self, runs: Iterable[Run], name: str = BASELINE, keys: Sequence[str] = ()) -> None:
        self.name, self.keys = name, keys if name == BASELINE else (*keys, *PASSES)
        self._by_scenario: dict[str, list[Run]] = {}
        for run in runs:
            if _is(run, name):
                self._by_scenario.setdefault(scenario(run, name, self.keys), []).append(run)

    def __bool__(self) -> bool:
        """Whether there is any run of the bound."""
        return bool(self._by_scenario)

    def of(self, run: Run) -> Bound:
        """Of several with the same seeds it prefers the same recipe, then finished runs, then the most accurate."""
        alike = self._by_scenario.get(scenario(run, self.name, self.keys), []) if self else []
        alike = [other for other in alike if other.path != run.path and _has_accuracy(other)]
        same = [other for other in alike if other.seeds == run.seeds]
        if same:
            best = max(same, key=lambda o: (same_recipe(run, o), o.finished, o.accuracy() or 0.0))
            return Bound(self.name, (best,), True, tuple(other_recipe(run, best)))
        differs = dict.fromkeys(key for other in alike for key in other_recipe(run, other))
        return Bound(self.name, tuple(alike), False, tuple(differs))


def _is(run: Run, method: str) -> bool:
    """Whether it is a run of this method; False if it cannot be read."""
    try:
        return run.method == method
    except FedfewError:
        return False


def _has_accuracy(run: Run) -> bool:
    try:
        return run.accuracy() is not None
    except FedfewError:
        return False


def bounds_of(run: Run, others: Sequence[Run]) -> list[Bound]:
    """Server-only, FedAvg with true labels and pooled training in the scenario of a run."""
    return [Pairing(others, name).of(run) for name in BOUNDS]
