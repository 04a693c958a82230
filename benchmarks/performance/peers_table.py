"""The results of the peers benchmark as a table, as ratios, and against the targets."""

from typing import Any

NAMES = {
    "pool": "fedfew, pool",
    "inline": "fedfew, inline, 1 thread",
    "inline-threads": "fedfew, inline, all threads",
    "torch": "plain PyTorch",
    "flower": "Flower's simulation",
}
HEAD = ["", "s a round", "pool is faster by", "forward passes", "share of peak", "memory, MB", "start-up, s"]
GOALS = {
    "cifar": (("torch", 3.0), ("flower", 2.0), ("floor", 0.7), ("inline", 1.8)),
    "mnist": (("torch", 4.0), ("flower", 10.0), ("inline", 1.8)),
}
WORDS = {
    "torch": "pool against plain PyTorch",
    "flower": "pool against Flower's simulation",
    "floor": "pool as a share of the floor",
    "inline": "pool against inline on one thread, clients dividing evenly",
}


def model_name(workload: str, width: int) -> str:
    """The model of a workload, in words."""
    return f"{'ResNet-9' if workload == 'cifar' else 'small cnn'} of width {width}"


def ratio(result: dict[str, Any], other: str) -> float | None:
    """How many times faster the pool is than another (the share of the floor's speed for the floor)."""
    contestants = result["contestants"]
    pool = contestants.get("pool")
    if pool is None or (other != "floor" and other not in contestants):
        return None
    if other == "floor":
        return float(result["floor_seconds"] / pool["seconds"])
    if other == "inline":
        return float(contestants["inline"]["even"] / pool["even"])
    return float(contestants[other]["seconds"] / pool["seconds"])


def targets(workloads: dict[str, Any]) -> list[dict[str, Any]]:
    """Every goal whose contestants took part, with the result."""
    result = []
    for name, goals in GOALS.items():
        for other, goal in goals:
            got = ratio(workloads[name], other) if name in workloads else None
            if got is not None:
                result.append({"what": f"{name}: {WORDS[other]}", "goal": goal, "got": got, "met": got >= goal})
    return result


def rows(result: dict[str, Any]) -> list[list[str]]:
    """A table with its header."""
    pool = result["contestants"].get("pool")
    table = [HEAD]
    for kind, one in result["contestants"].items():
        faster = f"{one['seconds'] / pool['seconds']:.2f} ×" if pool and kind != "pool" else ""
        table.append(
            [
                NAMES[kind],
                f"{one['seconds']:.2f}",
                faster,
                f"{one['equivalents']:.1f}",
                f"{one['share_of_peak']:.0%}",
                f"{one['memory_mb']:,.0f}",
                f"{one['start']:.1f}",
            ]
        )
    if result["floor_seconds"]:
        ours = result["contestants"].get("pool") or result["contestants"]["inline"]
        faster = f"{result['floor_seconds'] / pool['seconds']:.2f} ×" if pool else ""
        floor = f"{result['floor_seconds']:.2f}"
        table.append(["arithmetic's floor", floor, faster, f"{ours['equivalents']:.1f}", "100%", "", ""])
    return table
