"""What glibc is asked for: thresholds and one arena, an older one's largest, or nothing."""

from fedfew.core.environment import (
    KEPT,
    M_ARENA_MAX,
    M_MMAP_THRESHOLD,
    M_TRIM_THRESHOLD,
    OLDER,
    keep_freed_memory,
    set_option,
)


class Glibc:
    """Takes thresholds up to a limit, as mallopt does."""

    def __init__(self, limit: int) -> None:
        self.limit, self.taken = limit, dict[int, int]()

    def __call__(self, option: int, value: int) -> int:
        if option == M_MMAP_THRESHOLD and value > self.limit:
            return 0
        self.taken[option] = value
        return 1


def test_new_and_old_versions_and_none() -> None:
    for limit, threshold in ((KEPT, KEPT), (OLDER, OLDER)):
        glibc = Glibc(limit)
        set_option(glibc)
        assert glibc.taken == {M_MMAP_THRESHOLD: threshold, M_TRIM_THRESHOLD: KEPT, M_ARENA_MAX: 1}
    refusing = Glibc(0)
    set_option(refusing)
    assert refusing.taken == {}
    set_option(None)


def test_it_can_be_asked_for_anywhere() -> None:
    keep_freed_memory()
