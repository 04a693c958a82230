"""The figures that need runs, and the arms of each."""

from fedfew.core.errors import FedfewError
from paper.arms import PAPER, TITLES, Arm
from paper.few import FEW, SETTINGS, SITES, few_labels


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
