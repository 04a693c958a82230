"""Labels at clients: which clients hold some, and of which of their images. Off unless a config sets it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Gt, Le

from fedfew.core.settings import Count, Doc, Natural
from fedfew.core.streams import numpy_stream
from fedfew.data.shares import Indices, ranks

Known = Callable[[int, Indices], Indices]
"""Maps a client and the classes of its images to the positions of those whose labels it holds."""


@dataclass(frozen=True)
class ClientLabels:
    """A scenario of the simulation: some clients hold labels of a few of their own images (labels-at-client)."""

    each: Annotated[Natural, Doc("labels at each client that holds any, spread over its classes; 0: none")] = 0
    share: Annotated[float, Gt(0), Le(1), Doc("share of the clients that hold labels, at least one client")] = 1.0
    batch: Annotated[Count, Doc("labeled images added to each of the client's batches of unlabeled ones")] = 10

    def known(self, clients: int, seed: int) -> Known | None:
        """Who holds which labels, drawn from the data's seed; None where no client holds any."""
        if not self.each:
            return None
        holders = numpy_stream(seed, "label-holders").permutation(clients)[: max(round(self.share * clients), 1)]
        chosen = frozenset(holders.tolist())

        def known(client: int, truth: Indices) -> Indices:
            if client not in chosen:
                return np.empty(0, np.int64)
            shuffled = numpy_stream(seed, "client-labels", client).permutation(len(truth))
            first = np.argsort(ranks(truth[shuffled]), kind="stable")[: self.each]
            return np.sort(shuffled[first])

        return known


NO_LABELS = ClientLabels()
"""The usual scenario: labels at the server only."""
