"""Takes one client out of a server's state (fedmoments): its survey and its last sums, exactly.

The sums of the others stay as they are. What they counted depended on scores, and on shifts of the sites, to which the
client had contributed; only a new run without it undoes that.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from fedfew.core.types import ClientUpdate
from fedfew.methods.fedmoments.answers import PREFIX
from fedfew.methods.fedmoments.survey import Tally

SURVEYS = "surveys/"
"""Entries of the server's state with one client's survey; checkpoints write each to a file of its own, once."""
FEW = 32
"""Clients up to which each one's survey is kept: 600 kB each."""


def keep_surveys(
    extra: Mapping[str, Tensor], known: int, surveyed: Iterable[tuple[ClientUpdate, float, Tensor]]
) -> dict[str, Tensor]:
    """The state with these clients' weights and sums, as long as few clients are known; then with nobody's."""
    if known > FEW:
        return {name: t for name, t in extra.items() if not name.startswith(SURVEYS)}
    return dict(extra) | {
        f"{SURVEYS}{one.client}": torch.cat([torch.tensor([one.examples, weight], dtype=torch.float64), sums.double()])
        for one, weight, sums in surveyed
    }


def forgotten(extra: Mapping[str, Tensor], client: int, width: int) -> dict[str, Tensor] | None:
    """The state without a client; None if its survey was not kept."""
    if f"{SURVEYS}{client}" not in extra:
        return None
    rest = {name: t for name, t in extra.items() if name not in (f"{SURVEYS}{client}", f"{PREFIX}{client}")}
    tally = Tally.of({}, width)
    for number in sorted(int(name.removeprefix(SURVEYS)) for name in rest if name.startswith(SURVEYS)):
        images, weight, *_ = rest[f"{SURVEYS}{number}"][:2].tolist()
        tally = tally.add(rest[f"{SURVEYS}{number}"][2:], int(images), weight) if weight else tally
    return rest | tally.tensors()
