"""Labels and class names, without the clients: the lower bound where a backbone knows the classes by name.

W, b = arg min  mean CE(xW + b) + λ/2 ‖W − t N‖²     N: weights of the names, by the backbone; cross-validation: t, λ

Where the backbone knows no names, N = 0: logistic regression on the labels alone.
"""

from dataclasses import dataclass, replace

import torch

from fedfew.core.types import Outcome, RoundEnd, ServerSite, ServerState, Updates
from fedfew.methods.entry import Entry
from fedfew.methods.fedmoments.basis import features
from fedfew.methods.fedmoments.method import refuse
from fedfew.methods.fedmoments.server import as_model, names_of
from fedfew.methods.fedmoments.share import folds_of, label_model
from fedfew.methods.server_only import NoClients

FOLDS = 4


@dataclass(frozen=True)
class LabelsNames(NoClients):
    """The baseline for data whose classes the backbone knows by name."""

    names = True

    def warm_up(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        x, labels = features(site.labeled.samples), site.labeled.labels
        own = label_model(x, labels, site.classes, folds_of(labels, site.classes, FOLDS), names_of(site))
        extra = {**state.extra, "names": torch.tensor(own.names)}
        return replace(state, sigma=as_model(site, own.weight, own.bias), extra=extra)

    def before_clients(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        return state

    def after_clients(self, state: ServerState, updates: Updates, site: ServerSite, rng: torch.Generator) -> RoundEnd:
        return replace(state, omega=state.sigma), Outcome(metrics={"names": float(state.extra["names"])})


LABELS_NAMES = Entry(LabelsNames, aggregator="uniform", asks_clients=False, refuse=refuse)
