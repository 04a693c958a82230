"""Which run counts as the bound of another: the same scenario, and for upper bounds the same image passes."""

from typing import Any

import pytest
from tests.studies.runs_by_hand import flat

from fedfew.studies.bounds import bounds_of


@pytest.mark.parametrize("key", [{"participation": 1.0}, {"client__epochs": 7}, {"partition__mu": 3.0}])
@pytest.mark.parametrize("bound", ["all-labels", "pooled"])
def test_an_upper_bound_with_other_image_passes_is_none(bound: str, key: dict[str, Any]) -> None:
    own, same = flat(0.5, name="own"), flat(0.8, name="same", method__name=bound)
    other = flat(0.9, name="other", method__name=bound, **key)
    found = {b.name: b.runs for b in bounds_of(own, [own, same, other])}
    assert found[bound] == (same,)
    assert not {b.name: b.runs for b in bounds_of(own, [own, other])}[bound]


def test_server_only_training_does_not_depend_on_the_clients() -> None:
    own, lower = flat(0.5, name="own"), flat(0.4, name="lower", method__name="server-only", participation=1.0)
    assert bounds_of(own, [own, lower])[0].runs == (lower,)
