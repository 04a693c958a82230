"""The reliability targets: what must hold, the command that checks it, and its time limit."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Target:
    """A claim and its check: words after ``python -m``; ``quick`` has smaller counts."""

    text: str
    command: list[str]
    quick: list[str] = field(default_factory=list)
    limit: float = 900.0


def _tests(text: str, *places: str, limit: float = 600.0) -> Target:
    return Target(text, ["pytest", *places], limit=limit)


def _script(text: str, words: str, quick: str = "", limit: float = 3600.0) -> Target:
    name, *rest = words.split()
    return Target(
        text,
        [f"benchmarks.reliability.{name}", *rest],
        [f"benchmarks.reliability.{name}", *quick.split()] if quick else [],
        limit,
    )


CHECKPOINTS, GATE, POOL = "tests/runs/test_checkpoints.py", "tests/runtime/test_gate.py", "tests/runtime/test_pool.py"
CLUSTER, BITS = "tests/deploy/test_cluster_faults.py", "tests/integration/test_same_bits.py"

TARGETS: dict[str, Target] = {
    "R1": _script(
        "kill -9 at 50 moments, 10 inside a checkpoint write: all resume, no round lost, same hash", "kill9", "20 4"
    ),
    "R2": _tests("every prefix of a checkpoint's file operations can be resumed from", CHECKPOINTS, "-k", "prefix"),
    "R3": _script("1,000 flipped bits in run folders: all reported, repaired, same hash", "bitflips", "100"),
    "R4": _tests(
        "disk full, I/O error, folder gone: named error, exact resume", CHECKPOINTS, "-k", "disk or grow or vanishes"
    ),
    "R5": _tests(
        "SIGTERM and Ctrl-C: stops, can be resumed, no process left",
        "tests/interface/test_run_command.py",
        "-k",
        "polite",
    ),
    "R6": _script("kill -9 during sweep and the paper's runs: the same command finishes, same hashes", "studies", "2"),
    "R7": _tests(
        "other threads or torch on resume: refused or marked", "tests/runs/test_session.py", "-k", "environment"
    ),
    "D1": _tests("same config 20 times: one hash", BITS, "-k", "twenty"),
    "D2": _tests("1, 2, 4 workers and 100 orders of arrival: one hash", BITS, "-k", "workers or orders"),
    "D3": _tests("inline, pool and Flower: one hash", "tests/deploy/test_cluster.py"),
    "D4": _tests("the clock jumps by ± 1 day at every look: one hash", "tests/runs/test_session.py", "-k", "clock"),
    "C1": _script("30 % of the workers killed in each of 150 rounds: finishes, finite", "crashes", "50"),
    "C2": _tests("all clients fail: round skipped, model unchanged, named stop, resumable", GATE, "-k", "skipped"),
    "C3": _tests("one survivor is enough", GATE, "-k", "survivor"),
    "C4": _tests(
        "late, second and replayed answers are ignored and noted",
        "tests/deploy/test_fleet.py",
        "-k",
        "late or second",
    ),
    "C5": _tests("malformed replies × aggregators × positions: rejected, or without effect", GATE, "-k", "malformed"),
    "C6": _tests(
        "oversized and hostile replies on a real network: server grows by less than 64 MB",
        "tests/deploy/test_cluster_hostile.py",
    ),
    "C7": _script(
        "30 % of pieces late and 5 % tear the line, line cut for 20 s, bytes drip: no round skipped", "network"
    ),
    "C8": _script(
        "10,000 rounds: memory drifts by less than 2 %, checkpoints by at most 20 bytes a round",
        "soak rounds",
        "rounds 3000",
    ),
    "C9": _tests("a worker killed at work, idle or while scoring: the pool heals", POOL, "-k", "killed"),
    "C10": _script("workers ended for lack of memory in a cgroup: the run finishes", "memory", "6"),
    "C11": _script(
        "1,000 sites in one round: all counted, server grows by less than 512 MB", "soak sites", "sites 300"
    ),
    "C12": _tests(
        "SuperLink, SuperNode, front, executor, site and server killed mid-run: finishes",
        CLUSTER,
        "-k",
        "every_part",
        limit=1800,
    ),
    "F1": _script("100,000 damaged images: no crash, no hang, less than 512 MB", "images", "3000"),
    "F2": _tests("bombs (PNG, NPZ, archives) refused before they grow", "tests/data", "-k", "bomb or billion"),
    "F3": _tests(
        "archives with .., absolute names, links, devices: nothing outside",
        "tests/data/test_formats.py",
        "-k",
        "unsafe",
    ),
    "F4": _tests("no pickle, torch.load, yaml.load or eval in the package", "tests/golden/test_no_code_from_data.py"),
    "F5": _tests(
        "a zoo of odd files: pixels or a named reason",
        "tests/data/test_images.py",
        "tests/data/test_folders.py",
        "-k",
        "zoo",
    ),
    "F6": _tests("the same image in server/ and test/ is found", "tests/data/test_folders.py", "-k", "same_image"),
    "S1": _tests(
        "unregistered, forged, keyless, wrong authority, no TLS: refused",
        "tests/deploy/test_cluster_rogues.py",
        limit=1800,
    ),
    "S2": _tests(
        "odd requests to the page: no 5xx, nothing outside", "tests/interface/test_page.py", "-k", "odd_requests"
    ),
    "S3": _script(
        "1,000 sites poll the front beside strangers who hold 1,000 lines: every poll answered, front below 256 MB",
        "load",
        limit=600,
    ),
    "S4": _tests(
        "bytes on the wire: no pixels, labels or file names; all in the ledger", "tests/deploy/test_cluster_canaries.py"
    ),
    "S5": _tests("a run on Flower connects to nobody outside", "tests/deploy/test_cluster.py"),
    "S6": _script(
        "the live page at 10,000 rounds and at 2,000 runs: every page within 1 s of the processor's time",
        "pages",
        limit=600,
    ),
    "S7": Target("wheel and sdist built twice: same bytes", ["tools.supply", "dist", "dist"]),
}
