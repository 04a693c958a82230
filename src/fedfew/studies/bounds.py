"""Pairs a run with its bounds: the one rule by which comparisons, pages and reports judge a method.

Where a frozen backbone knows the classes by name, labels and names without any site are a lower bound too.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

from fedfew.config import tables
from fedfew.core.errors import FedfewError
from fedfew.methods import METHODS
from fedfew.models.backbones.imagenet import classes_named
from fedfew.runs.run import BOUNDS, NAMES, REFERENCES, TITLES, Run
from fedfew.runs.summary import HEADLINE
from fedfew.transforms import MEASURED

METHOD, BASELINE, POOLED = "method.name", BOUNDS[0], BOUNDS[2]
LOWER = (BASELINE, NAMES)
"""Lower bounds, which ask no client."""
CLIENT_KEYS = (
    "partition.", "aggregator.", "availability.", "client.", "vote.", "objective.", "gate.", "participation", "clients",
    "client_labels.", "compression.", "privacy.", "evaluate.every", "evaluate.clients", "evaluate.by_client",
)  # fmt: skip
"""Keys without influence on server-only training, which uses no client."""
SCENARIO = ("labels", "rounds", "dataset.", "model.")
PASSES = ("participation", "client.epochs")
"""How often the clients' images are used; upper bounds depend on it too."""
RECIPE = ("server.", "method.lambda_s", "start", "evaluate.ema", "evaluate.stop", "engine.autocast")
"""How the server trains, from where and in which precision, and which model is evaluated when."""
IMPLIED = {f"method.{key}": value for key, value in tables.IMPLIED.items()}
"""Values that hold for methods without the key."""
TUNED = "best of {} trials by validation accuracy ({})"
"""How the settings of a run were searched for: the trials of its method, and the searched keys."""
UNAFFECTED = "no searched setting affects it"
WARMUP, POLICY, ORDER = "method.warmup", "norm.policy", "method.order"
NO_FIRST_TURN = (*LOWER, POOLED, "semifl", "fl2")
"""Methods whose server does not train before the first round unless a warm-up is set."""
KNOWS_NAMES = ("efficientnet-lite0", "resnet50")
"""Backbones whose own classifier has names of classes; a sentence encoder knows words."""
Flat = dict[str, Any]


def settings(run: Run) -> Flat:
    """A run's settings as dotted keys, without the fleet and without keys that do not affect its method."""
    unused: tuple[str, ...] = () if has_objective(run.method) else ("objective.",)
    if run.method in LOWER:
        unused = CLIENT_KEYS if run.method == BASELINE else (*CLIENT_KEYS, "server.")
    return {key: value for key, value in run.flat.items() if not key.startswith(("fleet.", *unused))}


@cache
def has_objective(method: str) -> bool:
    """Whether [objective] affects a method; one that is not built in may use it."""
    return method not in METHODS or METHODS[method].takes("objective")


def knows_names(run: Run) -> bool:
    """Whether the run's frozen backbone knows two of its classes by name, or more."""
    model, names = run.flat.get("model.name"), run.classes.get("classes", ())
    if run.flat.get("model.train") != "head" or not run.labels:
        return False
    if model == "sentence":
        return not all(name.isdigit() for name in names)
    return model in KNOWS_NAMES and sum(bool(classes_named(name)) for name in names) > 1


def varying(flats: Sequence[Flat]) -> list[str]:
    """The keys in which any two differ."""
    first = flats[0] if flats else {}
    keys = {key: first.get(key) for key in chain.from_iterable(flats)}
    return [key for key, value in keys.items() if any(flat.get(key) != value for flat in flats)]


def hashable(flat: Flat, key: str) -> Any:
    """A setting's value in a form for sets and dict keys."""
    value = flat.get(key)
    return repr(value) if isinstance(value, list | dict) else value


def scenario(run: Run, bound: str = BOUNDS[1], keys: Iterable[str] = ()) -> str:
    """What two runs must share, apart from seeds, for their accuracies to be comparable.

    Lower bounds do not depend on the clients. ``keys`` are further keys that must be equal.
    """
    recipe = ("method.", "server.", "norm.", "seed", "dataset.seed")  # left to other_recipe
    at_clients = ("clients", "partition.", *(("client_labels.",) if run.flat.get("client_labels.each") else ()))
    wanted, ignored = (SCENARIO, recipe + CLIENT_KEYS) if bound in LOWER else (SCENARIO + at_clients, recipe)
    shared = {key: value for key, value in run.flat.items() if key.startswith(wanted) and key != "dataset.seed"}
    shared |= {key: run.flat.get(key) for key in keys if not key.startswith(ignored)}
    return json.dumps(shared, sort_keys=True)


def other_recipe(run: Run, other: Run) -> list[str]:
    """The keys in which the server's training differs, or the point at which a round is scored.

    Keys that a search chose for each of the two, with as many trials, are as fair as equal ones.
    """
    own, its = ({**IMPLIED, **r.flat} for r in (run, other))
    keys = [key for key, value in own.items() if key.startswith(RECIPE) and value != its.get(key, value)]
    keys = [key for key in keys if key not in _both_searched(run.tuned, other.tuned)]
    if _statistics(own) != _statistics(its):
        keys.append(POLICY)
    if abs(_epochs_before(own) - _epochs_before(its)) > own["server.epochs"]:
        keys.append(WARMUP)  # one turn may differ: the server of some methods trains in parallel with the clients
    return keys + ([ORDER] if "before" in (own.get(ORDER), its.get(ORDER)) else [])


def _both_searched(own: str, its: str) -> set[str]:
    """The keys that two searches of equal effort have chosen, each for its own method."""
    (trials, keys), (other, its_keys) = searched(own), searched(its)
    return keys & its_keys if trials == other else set()


def searched(tuned: str) -> tuple[str, set[str]]:
    """The trials and the keys of a search as it is told; nothing where there was none."""
    found = re.fullmatch(re.escape(TUNED).replace(r"\{\}", "(.*)"), tuned)
    return (found[1], set(found[2].split(", "))) if found else ("", set())


def _statistics(flat: Flat) -> str:
    """Whose images give the batch norm of the evaluated model, where they are measured after a round."""
    policy: str = flat.get(POLICY, "")
    return policy if policy in MEASURED else ""


def _epochs_before(flat: Flat) -> int:
    """The server's epochs before the first round; most methods take a usual turn where no warm-up is set."""
    if WARMUP not in flat:
        return 0
    return int(flat[WARMUP] or (0 if flat[METHOD] in NO_FIRST_TURN else flat["server.epochs"]))


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
        """What it bounds; empty for FedAvg with true labels, which loses accuracy by averaging."""
        roles = {BASELINE: "lower bound", NAMES: "lower bound where names are known", POOLED: "upper bound"}
        return roles.get(self.name, "")

    @property
    def mismatch(self) -> str:
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
        self.name, self.keys = name, keys if name in LOWER else (*keys, *PASSES)
        self._shared: Sequence[str] = ()
        if name not in REFERENCES:  # the clients' settings are a method's own, unless all methods vary in them
            self.keys = PASSES[:1]
            self._shared = [key for key in keys if not key.startswith(("method.", "aggregator."))]
        self._by_scenario: dict[str, list[Run]] = {}
        for run in runs:
            if _is_scored(run, name):
                self._by_scenario.setdefault(scenario(run, name, self.keys), []).append(run)

    def __bool__(self) -> bool:
        """Whether there is any run of the bound."""
        return bool(self._by_scenario)

    def of(self, run: Run) -> Bound:
        """Of several with the same seeds it prefers the same recipe, then finished runs, then the most accurate."""
        comparable = self._by_scenario.get(scenario(run, self.name, self.keys), []) if self else []
        others = [other for other in comparable if other.path != run.path]
        recipes = {other: [] if self.name == NAMES else other_recipe(run, other) for other in others}
        same = [other for other in recipes if other.seeds == run.seeds]
        if len(same) > 1 and self.name not in REFERENCES:
            same = [o for o in same if all(o.flat.get(k) == run.flat.get(k) for k in self._shared)] or same
            if several := varying([settings(other) for other in same]):
                return Bound(self.name, tuple(same), True, tuple(several))
        if same:
            best = max(same, key=lambda other: (not recipes[other], other.finished, other.accuracy() or 0.0))
            return Bound(self.name, (best,), True, tuple(recipes[best]))
        return Bound(self.name, tuple(recipes), False, tuple(dict.fromkeys(chain.from_iterable(recipes.values()))))


def _is_scored(run: Run, method: str) -> bool:
    """Whether it is a run of this method that has an accuracy; False if it cannot be read."""
    try:
        return run.method == method and run.accuracy() is not None
    except FedfewError:
        return False


def bounds_of(run: Run, others: Sequence[Run]) -> list[Bound]:
    """Server-only, FedAvg with true labels and pooled training in the scenario of a run; labels and names, if known."""
    return [Pairing(others, name).of(run) for name in (*(LOWER if knows_names(run) else LOWER[:1]), *BOUNDS[1:])]
