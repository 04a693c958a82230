"""Why a client's answer is missing or does not count. Values are the codes that ``fedfew explain`` explains."""

from enum import StrEnum


class Refusal(StrEnum):
    """A reason; the record of a round has its code."""

    NAMES = "E401"
    SHAPE = "E402"
    TYPE = "E403"
    NOT_FINITE = "E404"
    TOO_LARGE = "E405"
    OUT_OF_BOUNDS = "E406"
    COUNT = "E407"
    FAILED = "E408"
    DIED = "E409"
    NO_ANSWER = "E410"
    DROPPED_OUT = "E411"
    INDICES = "E412"
    LATE = "E413"
    TWICE = "E414"
    OTHER_ROUND = "E415"
    UNREACHABLE = "E416"
    UNFIT_SITE = "E417"
    TOO_FEW = "E418"
    PAYLOAD = "E419"
    BUDGET = "E420"
    HARMFUL = "E421"


NO_UPDATE = frozenset(
    {
        Refusal.FAILED,
        Refusal.DIED,
        Refusal.NO_ANSWER,
        Refusal.DROPPED_OUT,
        Refusal.UNREACHABLE,
        Refusal.UNFIT_SITE,
        Refusal.TOO_FEW,
        Refusal.PAYLOAD,
        Refusal.BUDGET,
    }
)
"""Clients that sent no update, or none that was checked; any other reason is a refusal by the gate or the screen."""
UNUSED = frozenset({Refusal.LATE, Refusal.TWICE})
"""Answers that came too late or twice: they are recorded, but are not part of the round they came in."""
SHARED_CAUSE = frozenset(
    {
        Refusal.NAMES,
        Refusal.SHAPE,
        Refusal.TYPE,
        Refusal.TOO_LARGE,
        Refusal.FAILED,
        Refusal.UNFIT_SITE,
        Refusal.PAYLOAD,
    }
)
"""Faults that do not depend on a client's samples or machine: if all clients of the first round share one, E512."""
