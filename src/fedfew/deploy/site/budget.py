"""A site's privacy account: the ε spent by its updates over all runs and servers, in a file in its folder."""

import json
from dataclasses import dataclass
from pathlib import Path

from fedfew.core.errors import FedfewError
from fedfew.core.storage import write_atomically
from fedfew.transforms.epsilon import epsilon


@dataclass(frozen=True)
class PrivacyBudget:
    """privacy.json: the number of updates sent at each noise level. ``most``: the largest total ε; 0: no limit."""

    path: Path
    most: float = 0.0
    delta: float = 1e-5

    def charge(self, noise: float) -> None:
        """Count an update before it is made; raises E420, and counts nothing, if it would exceed the budget."""
        spent = self._read()
        spent[noise] = spent.get(noise, 0) + 1
        if self.most and (would_be := epsilon(spent, self.delta)) > self.most:
            reason = f"this update would bring ε to {would_be:.4g} at δ = {self.delta:g}; the budget is {self.most:g}"
            raise FedfewError("E420", str(self.path), reason)
        content = {"updates": [{"noise": z, "count": n} for z, n in sorted(spent.items())]}
        write_atomically(self.path, json.dumps(content, indent=1).encode())

    def _read(self) -> dict[float, int]:
        """An unreadable file is an error, not an empty account."""
        if not self.path.exists():
            return {}
        try:
            content = json.loads(self.path.read_bytes())
            return {float(one["noise"]): int(one["count"]) for one in content["updates"]}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FedfewError("E420", str(self.path), f"cannot be read: {error}") from None
