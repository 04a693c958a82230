"""A trained model as an estimator in the manner of scikit-learn: ``predict``, ``predict_proba`` and ``score``."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedfew.core.network import Network
from fedfew.runs.model_file import fitting, load_model
from fedfew.runs.run import Run


@dataclass(frozen=True, eq=False)
class Classifier:
    """Takes what the model was trained on: a data frame or array of rows, a list of texts, or uint8 images."""

    network: Network
    about: dict[str, Any]

    @property
    def classes_(self) -> NDArray[Any]:
        """The names of the classes, in the order of the probabilities."""
        return np.array(self.about["classes"])

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """The columns that a model of tables reads; none for images and texts."""
        return np.array([column["name"] for column in self.about.get("encoder", {}).get("columns", [])])

    def predict_proba(self, samples: Any) -> NDArray[np.float32]:
        """Probabilities N×classes."""
        shares: NDArray[np.float32] = self.network.probabilities(fitting(samples, self.about)).cpu().numpy()
        return shares

    def predict(self, samples: Any) -> NDArray[Any]:
        """The most probable class of each sample, by name."""
        names: NDArray[Any] = self.classes_[self.predict_proba(samples).argmax(1)]
        return names

    def score(self, samples: Any, labels: ArrayLike) -> float:
        """The share of the samples whose class is predicted."""
        return float((self.predict(samples) == np.asarray(labels).astype(str)).mean())


def load_classifier(model: Run | str | Path, allow_code: Collection[str] = ()) -> Classifier:
    """The model of a run, a model file or an export for Hugging Face, as a ``Classifier``."""
    path, allowed = (model.model_path(), model.allow_code) if isinstance(model, Run) else (model, allow_code)
    return Classifier(*load_model(path, allowed))
