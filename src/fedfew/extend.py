"""Everything that your own method, aggregator, objective, model, dataset or partition needs, in one place.

This module is the public interface for extensions. Its names keep their meaning and their parameters in every release
with the same first two numbers; before a change they are deprecated for one such release. Other modules may move at
any time.
"""

from fedfew.aggregators.weighted import weighted_mean
from fedfew.core.errors import FedfewError
from fedfew.core.layout import Expected, Layout, Payload, Schema, Vector
from fedfew.core.samples import LabeledSet, OwnView, Samples, StrongView
from fedfew.core.settings import Count, Doc, Fraction, NonNegative
from fedfew.core.types import (
    Aggregate,
    Aggregator,
    ClientSite,
    ClientUpdate,
    Contribution,
    Method,
    Outcome,
    RoundEnd,
    ServerSite,
    ServerState,
    Trained,
    Transform,
    Updates,
)
from fedfew.data.dataset import Dataset, SiteSamples
from fedfew.data.samples import Images, Vectors
from fedfew.methods.entry import Entry, Federated, Scenario
from fedfew.models.backbones import Backbone, Preprocess, Pretrained, pretrained
from fedfew.objectives.objective import Batch, Step
from fedfew.training.label_shift import Adjust, unadjusted
from fedfew.training.sgd import Hooks, LocalSGD, descend
from fedfew.training.supervised import Supervised, train_server
from fedfew.training.updates import contributions, scalar
from fedfew.training.vote import Ballot

__all__ = [
    "Adjust",
    "Aggregate",
    "Aggregator",
    "Backbone",
    "Ballot",
    "Batch",
    "ClientSite",
    "ClientUpdate",
    "Contribution",
    "Count",
    "Dataset",
    "Doc",
    "Entry",
    "Expected",
    "Federated",
    "FedfewError",
    "Fraction",
    "Hooks",
    "Images",
    "LabeledSet",
    "Layout",
    "LocalSGD",
    "Method",
    "NonNegative",
    "Outcome",
    "OwnView",
    "Payload",
    "Preprocess",
    "Pretrained",
    "RoundEnd",
    "Samples",
    "Scenario",
    "Schema",
    "ServerSite",
    "ServerState",
    "SiteSamples",
    "Step",
    "StrongView",
    "Supervised",
    "Trained",
    "Transform",
    "Updates",
    "Vector",
    "Vectors",
    "contributions",
    "descend",
    "pretrained",
    "scalar",
    "train_server",
    "unadjusted",
    "weighted_mean",
]
