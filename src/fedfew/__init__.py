"""fedfew: federated learning when only the server has labels, and only a few."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedfew import plots
    from fedfew.aggregators.weighted import fedfreq_weights
    from fedfew.api import compare, resume, run, sweep
    from fedfew.config.arrays import from_arrays
    from fedfew.core.errors import ConfigErrors, FedfewError
    from fedfew.data.partitions import partition
    from fedfew.inference.classifier import Classifier, load_classifier
    from fedfew.methods.fedmix import mix
    from fedfew.runs.model_file import load_model, predict
    from fedfew.runs.run import Run
    from fedfew.runs.session import Experiment
    from fedfew.training.vote import vote

__version__ = "0.1.0"

_HOME = {
    "run": "fedfew.api",
    "resume": "fedfew.api",
    "sweep": "fedfew.api",
    "compare": "fedfew.api",
    "from_arrays": "fedfew.config.arrays",
    "Experiment": "fedfew.runs.session",
    "Run": "fedfew.runs.run",
    "load_model": "fedfew.runs.model_file",
    "predict": "fedfew.runs.model_file",
    "Classifier": "fedfew.inference.classifier",
    "load_classifier": "fedfew.inference.classifier",
    "fedfreq_weights": "fedfew.aggregators.weighted",
    "mix": "fedfew.methods.fedmix",
    "vote": "fedfew.training.vote",
    "partition": "fedfew.data.partitions",
    "FedfewError": "fedfew.core.errors",
    "ConfigErrors": "fedfew.core.errors",
}

__all__ = [
    "Classifier",
    "ConfigErrors",
    "Experiment",
    "FedfewError",
    "Run",
    "compare",
    "fedfreq_weights",
    "from_arrays",
    "load_classifier",
    "load_model",
    "mix",
    "partition",
    "plots",
    "predict",
    "resume",
    "run",
    "sweep",
    "vote",
]


def __getattr__(name: str) -> Any:
    """Load the public names when they are first used, so that ``fedfew --help`` does not wait for torch."""
    if name == "plots":
        return import_module("fedfew.plots")
    if name not in _HOME:
        raise AttributeError(f"module 'fedfew' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
