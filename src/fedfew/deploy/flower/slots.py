"""Places for connections at the front: limits for each address, each key and in all; strangers make room for others."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count


@dataclass(eq=False)
class Slot:
    """One connection."""

    address: str
    number: int
    abort: Callable[[], None]
    key: str = ""
    """The site's key, once a request was signed with it."""


@dataclass(eq=False)
class Slots:
    """Who is connected. A connection without a key may be ended for a newer one, the oldest first: an honest one shows
    its key within milliseconds, so those that wait are the ones that hold places."""

    most: int = 4096
    strangers: int = 512
    """Connections without a key, in all."""
    of_address: int = 128
    """Connections without a key from one address."""
    of_key: int = 16
    _open: dict[int, Slot] = field(default_factory=dict)
    _numbers: "count[int]" = field(default_factory=count)

    def take(self, address: str, abort: Callable[[], None]) -> Slot | None:
        """A place for a new connection; None if all are taken by sites with a key."""
        unknown = [slot for slot in self._open.values() if not slot.key]
        same = [slot for slot in unknown if slot.address == address]
        if len(same) >= self.of_address:
            self._end(same[0])
        elif len(unknown) >= min(self.strangers, self.most) or len(self._open) >= self.most:
            if not unknown:
                return None
            self._end(unknown[0])
        slot = Slot(address, next(self._numbers), abort)
        self._open[slot.number] = slot
        return slot

    def _end(self, slot: Slot) -> None:
        self.free(slot)
        slot.abort()

    def belongs(self, slot: Slot, key: str) -> bool:
        """Note whose connection it is; False if that site has too many already, or it was ended meanwhile."""
        if slot.number not in self._open:
            return False
        if slot.key != key and sum(other.key == key for other in self._open.values()) >= self.of_key:
            return False
        slot.key = key
        return True

    def free(self, slot: Slot) -> None:
        """The connection has ended."""
        self._open.pop(slot.number, None)
