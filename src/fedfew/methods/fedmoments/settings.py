"""The settings of fedmoments."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from fedfew.core.settings import Count, Doc, Fraction, Natural, NonNegative, Positive
from fedfew.methods.entry import Federated
from fedfew.methods.fedmoments.em import Shape


@dataclass(frozen=True)
class Settings(Federated):
    """The settings, and what follows from them alone."""

    directions: Annotated[
        Natural, Doc("directions of the backbone's classifier in which clients send sums; 0: all features")
    ] = 384
    width: Annotated[Count, Doc("number of principal directions that EM uses")] = 128
    mix: Annotated[
        Literal["sites", "even", "labels"],
        Doc("class shares over all clients: halfway between equal and what EM finds, equal, or those of the labels"),
    ] = "sites"
    confidence: Annotated[
        Fraction, Doc("mean confidence that the temperature is set to, before a client's class mix counts")
    ] = 0.75
    label_weight: Annotated[NonNegative, Doc("κ: how many unlabeled images one label outweighs in a class mean")] = 20.0
    evidence: Annotated[
        Positive, Doc("how many images of each class the prior assumes when it shrinks a class mean")
    ] = 30.0
    steps: Annotated[Count, Doc("steps in which a client estimates its own class mix")] = 10
    settled: Annotated[
        Fraction, Doc("EM stops when the share of images that change class falls below this, or rises")
    ] = 0.05
    survey: Annotated[Count, Doc("images to survey before EM starts; all, if there are fewer")] = 5000
    hear: Annotated[
        Fraction, Doc("share of the images surveyed that the answers must cover before EM takes a step")
    ] = 0.5
    patience: Annotated[Count, Doc("rounds without a new answer after which a step is taken with fewer")] = 3
    folds: Annotated[int, Ge(2), Doc("parts of the labels, each of which judges models that have not seen it")] = 4
    fold_directions: Annotated[Count, Doc("directions that the models of folds use")] = 128
    scanners: Annotated[
        bool, Doc("whether to look for sites whose scanner differs from the one of the labels, and to take it back")
    ] = True
    names: Annotated[bool, Doc("whether to use what the backbone knows of the classes' names")] = True
    most_steps: Annotated[
        Natural, Doc("number of steps of EM, whether classes have settled or not; 0: until they have")
    ] = 0
    image_noise: Annotated[
        NonNegative, Doc('noise that hides single images; with privacy.unit = "image" it is privacy.noise')
    ] = 0.0
    sums_only: Annotated[
        bool,
        Doc("use nothing of a single client, as secure sums need it: neither how their means differ nor trust in each"),
    ] = False
    remember: Annotated[Natural, Doc("number of clients up to which each one's latest sums are kept")] = 1000
    population: Annotated[Natural, Doc("total number of clients; 0: as in the config")] = 0

    @property
    def many(self) -> bool:
        """Whether clients are too many to keep what each one answered, or nobody is told."""
        return self.population > self.remember or self.sums_only

    def shape(self, classes: int, features: int) -> Shape:
        """What a client sends in a step of EM."""
        width = min(self.directions or features, features)
        return Shape(classes, width, self.folds, min(self.fold_directions, width))
