"""The text and tables of docs/understand/performance.md, from the results alone."""

from datetime import UTC, datetime
from typing import Any

from benchmarks.performance.peers_table import HEAD, model_name, rows

Results = dict[str, Any]
BENCHMARKS = ("peers", "phases", "precision", "backbone", "scaling")
COMMANDS = {
    name: f"python -m benchmarks.performance.{name} --page docs/understand/performance.md" for name in BENCHMARKS
}


def page_text(results: Results) -> str:
    """The whole page."""
    parts = ["# Performance", INTRODUCTION, _targets(results), _peers(results), _bounds(results), _phases(results)]
    parts += [
        DEVICES,
        _precision(results),
        _backbone(results),
        SEMIFL,
        _scaling(results),
        _measured(results),
        NOT_MEASURED,
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


INTRODUCTION = """
fedfew beside what people use now: the same FedMix rounds, clients, images, network, losses and step size, in one run on
one machine. Ratios come first, because seconds are this machine's. This page is written by the commands it names, from
`benchmarks/results/`.
"""

DEVICES = """
## Devices

| `engine.device` | float32 | `engine.autocast = "bfloat16"` | several at once |
|---|---|---|---|
| `cpu` | run | run, on a processor with AVX-512 BF16 | run: a process for each core |
| `cuda` | simulated | not run | simulated: a process for each of `fleet.devices = "cuda:0,cuda:1"` |
| `mps` | simulated | not run | there is only one |

Simulated: on a device that the tests make up, which refuses tensors of another one, every method and objective gives
the CPU's model; several devices were tried as `cpu:0,cpu:1`, which give the bits of a single one.
`auto` takes the first of cuda, mps and cpu that torch finds. On one GPU the clients train one after another in fedfew's
own process (`fleet.workers = 2` or more share it); vectors that are sent or stored are float32 in main memory on every
device. Mixed precision is torch's autocast with bfloat16: forward passes where torch considers it safe; weights,
gradients, losses and what is sent stay float32. There is no float16, so no loss scaling. No GPU was at hand: please
report what you find on one.
"""

NOT_MEASURED = """
## What was not measured

- GPUs: there was none. Nothing here says how fast fedfew is on one.
- More than the cores stated above, several machines, and real networks. `benchmarks/flower.py` times a round through a
  real Flower network on one machine.
- Other frameworks than plain PyTorch and Flower, and other methods than FedMix.
- Accuracy: these are rounds of equal work, not runs to an equal accuracy. What comes out of runs is in
  [Results](results.md).
"""


def _missing(name: str) -> str:
    return f"Not measured yet: `{COMMANDS[name]}`"


def _table(head: list[str], lines: list[list[str]]) -> str:
    rule = ["---"] * len(head)
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, rule, *lines])


def _targets(results: Results) -> str:
    """Every target, met or not."""
    lines = []
    for name, sign in (("peers", "≥"), ("backbone", "≥"), ("scaling", "≤")):
        for target in results.get(name, {}).get("targets", []):
            verdict = "met" if target["met"] else "**missed**"
            lines.append([target["what"], f"{sign} {target['goal']:g}", f"{target['got']:.2f}", verdict])
    return "## Against the targets\n\n" + _table(["", "target", "measured", ""], lines) if lines else ""


def _peers(results: Results) -> str:
    title = "## Against plain PyTorch and Flower\n\n"
    if "peers" not in results:
        return title + _missing("peers")
    result = title + "![Seconds of a round](performance/peers.svg)\n"
    for name, one in results["peers"]["workloads"].items():
        result += f"\n### {one['model']}: {one['clients']} clients × {one['images']} images ({one['data']})\n\n"
        result += _table(HEAD, rows(one)[1:]) + "\n"
        result += f"\n{_spread(one)}\n" + (_full_size(one) if name == "cifar" else "")
    return result + PEERS_NOTES


def _spread(one: dict[str, Any]) -> str:
    """How far apart the timed rounds are."""
    widest = max((max(c["all"]) / min(c["all"]) - 1, kind) for kind, c in one["contestants"].items())
    counts = {len(c["all"]) for c in one["contestants"].values()}
    count = "–".join(str(n) for n in sorted(counts))
    return f"Medians of {count} timed rounds, contestants in turn; the widest spread is {widest[0]:.0%} ({widest[1]})."


def _full_size(one: dict[str, Any]) -> str:
    if one["images"] >= 550:
        return ""
    return (
        f"\nThe paper's clients have about 550 images; here each has {one['images']}, so that the comparison takes"
        " minutes. The work for an image is the same; what a client costs besides (start of a job, vectors sent) weighs"
        " more here than there, most of all for Flower. `--images 550` measures the full size.\n"
    )


PEERS_NOTES = """
- A round is what lies between the server's training and the scoring: send, train the clients, collect, aggregate.
  Start-up (imports, workers, Ray, and one small client for each worker to warm up) is a column of its own.
- *fedfew, pool*: one process of one thread for each core. *inline, 1 thread* is what fedfew does inline, always: equal
  bits need an equal number of threads. *inline, all threads* is what it would be without that rule.
- *Plain PyTorch*: `Dataset`, `DataLoader`, a Pillow transform for each image and view, N×C×H×W, autograd for every
  term, `torch.optim.SGD`, averaged `state_dict`s, one client after another with all threads. Its losses share no work.
- *Flower's simulation*: the same client code in a `ClientApp`, on Ray actors of one core each; telemetry is off.
- *Arithmetic's floor*: the FLOP of fedfew's round, counted as direct convolutions, at the fastest product of matrices
  or images measured in the same run. Where channels are many fedfew convolves after Winograd, with a quarter of the
  products, so it can pass this floor; plain PyTorch convolves directly on a CPU like this one. Forward passes: FLOP for
  an image in units of one (direct) forward pass.
- *Memory*: the most that a contestant's processes had together, shared pages counted once.
- Pool against inline is taken with an even number of clients: with five on two cores one core waits at the end.
- About half of the images get a pseudo-label: the threshold is set to the middle of what the starting model is sure of.
"""


def _bounds(results: Results) -> str:
    """Where the distance to the floor comes from, computed from the numbers."""
    workloads = results.get("peers", {}).get("workloads", {})
    if "pool" not in workloads.get("cifar", {}).get("contestants", {}):
        return ""
    cifar, cores = workloads["cifar"], results["peers"]["machine"]["cores"]
    pool = cifar["contestants"]["pool"]
    turns = -(-cifar["clients"] // cores)
    share = cifar["clients"] / (turns * cores)
    even = cifar["floor_seconds"] * cifar["even_clients"] / cifar["clients"] / pool["even"]
    text = (
        "## What bounds it\n\n"
        f"With {cifar['model']} the pool reaches {cifar['floor_seconds'] / pool['seconds']:.0%} of the floor."
        f" {cifar['clients']} equal clients on {cores} cores need {turns} turns, in the last of which"
        f" a core may wait: direct convolutions could reach at most {share:.0%}, however fast a client is. With"
        f" {cifar['even_clients']} clients, where no core waits, it is {even:.0%}."
    )
    text += _against_torch(cifar, share)
    inside = results.get("phases", {}).get("workloads", {}).get("cifar")
    if inside:
        seconds = inside["client"]["seconds"]
        total = sum(seconds.values())
        share = (seconds["forward convolutions"] + seconds["backward convolutions"]) / total
        text += (
            f" Inside a client, {share:.0%} of the time is convolutions, which do the work of"
            f" {inside['client']['gflops_in_convolutions']:.0f} GFLOP/s of direct ones, where one core's peak is"
            f" {results['phases']['core_gflops']:.0f}; the rest is pooling, activations, augmentation and the step."
        )
    small = workloads.get("mnist", {}).get("contestants", {}).get("pool")
    if small:
        text += _small_bound(workloads["mnist"], results.get("phases", {}).get("workloads", {}).get("mnist"))
        text += (
            f"\n\nThe small network reaches {small['share_of_peak']:.0%} of the peak: its convolutions have few"
            " channels, and what surrounds them (normalisation, pooling, augmentation) takes a larger part."
        )
        flower = workloads["mnist"]["contestants"].get("flower")
        if flower:
            ratio = flower["seconds"] / workloads["mnist"]["floor_seconds"]
            text += (
                f" Flower's simulation takes {ratio:.1f} times the floor there, so that to be ten times as fast as it"
                f" a client would have to run at {10 / ratio:.0%} of the peak."
            )
    return text


def _against_torch(workload: dict[str, Any], share: float) -> str:
    """How much of the ratio to plain PyTorch the waiting core takes, and what is left of it without."""
    torch, pool = workload["contestants"].get("torch"), workload["contestants"]["pool"]
    if torch is None:
        return ""
    even = torch["seconds"] * workload["even_clients"] / workload["clients"] / pool["even"]
    passes = torch["equivalents"] / pool["equivalents"]
    return (
        f" Plain PyTorch uses both cores for every client and never waits, so against it the waiting core costs a"
        f" factor of {1 / share:.1f}: without one the ratio is {even:.1f} instead of"
        f" {torch['seconds'] / pool['seconds']:.1f}. Of it, {passes:.2f} are forward passes that are not needed, and"
        f" {even / passes:.1f} faster ones. To divide the last client between the cores would change its bits."
    )


def _small_bound(workload: dict[str, Any], inside: dict[str, Any] | None) -> str:
    """The most that the small network could gain on plain PyTorch if nothing but convolutions took time."""
    torch, pool = workload["contestants"].get("torch"), workload["contestants"]["pool"]
    if torch is None or inside is None:
        return ""
    seconds = inside["client"]["seconds"]
    convolving = sum(s for kind, s in seconds.items() if "convolutions" in kind) / sum(seconds.values())
    now, even = (
        torch["seconds"] / pool["seconds"],
        torch["seconds"] * workload["even_clients"] / workload["clients"] / pool["even"],
    )
    return (
        f"\n\nOf a client of the small network, {convolving:.0%} is convolutions. If all else took no time, the pool"
        f" would be {now / convolving:.1f} times as fast as plain PyTorch; for a factor of 4 the rest has to"
        f" take {1 - (now / 4 - convolving) / (1 - convolving):.0%} less time. Without the waiting core it is"
        f" {even:.1f} times as fast."
    )


PHASES_NOTE = """
While the server trains for the next round, a free worker scores this one; so *evaluate* is only what is waited for.
Writing what the workers are sent, once a round, counts as *clients*. *round* also holds the record and the manifest.
"""


def _phases(results: Results) -> str:
    title = "## Where a round's time goes\n\n"
    if "phases" not in results:
        return title + _missing("phases")
    result = title + "![Where the time goes](performance/phases.svg)\n"
    for name, one in results["phases"]["workloads"].items():
        result += f"\n{model_name(name, one['width'])}, a real run on the pool ({one['clients']} clients a round):\n\n"
        result += _table(list(one["phases"]), [[f"{seconds:.3f} s" for seconds in one["phases"].values()]]) + "\n"
        shares, total = one["client"]["seconds"], sum(one["client"]["seconds"].values())
        result += f"\nInside one of its clients (torch.profiler, one thread, {one['client']['wall']:.2f} s):\n\n"
        result += _table(list(shares), [[f"{seconds / total:.1%}" for seconds in shares.values()]]) + "\n"
    return result + PHASES_NOTE


PRECISION_NOTE = """
`--set engine.autocast=bfloat16`: convolutions in bfloat16; weights, their gradients and losses stay float32. The
processor must multiply bfloat16 in hardware (here AVX-512 BF16); on others it was not measured. In float32 the layers
with 64 channels and more convolve after Winograd, so a wide network gains less. Runs in bfloat16 differ from those in
float32, so use one of the two for all runs of a comparison: `compare` shows no paired difference across them.
"""


def _precision(results: Results) -> str:
    title = "## bfloat16 on a CPU\n\n"
    if "precision" not in results:
        return title + _missing("precision")
    passes = ("forward", "forward and backward")
    lines = [
        [str(one["width"]), name, *(f"{one[name][kind]:.2f} ms" for kind in ("float32", "bfloat16")),
         f"{one[name]['ratio']:.2f} ×"]
        for one in results["precision"]["networks"]
        for name in passes
    ]  # fmt: skip
    head = ["width of ResNet-9", "pass", "float32, an image", "bfloat16", "faster by"]
    return title + "One thread, in turn, medians.\n\n" + _table(head, lines) + "\n" + PRECISION_NOTE


BACKBONE_NOTE = """
CPU time of one thread, in turn, medians. *layer by layer* is the same module as torch runs it; fedfew computes
convolution and activation in one pass, with the same bits. Fewer images at a time brought nothing, and neither did
TorchScript, traced and frozen: in a trial of its own, whose times are not comparable with the table, it took 3.13 ms of
CPU time an image where the module took 3.12 (96 px), and 24.6 where it took 19.4 (224 px). An image of 224 pixels takes
0.77 GFLOP; other kernels would change the features' bits, and with them every published run on this backbone. An
encoder as an ONNX file runs in onnxruntime (`model.name = "onnx"`).
"""
SEMIFL = """## SemiFL beside its official code

Not measured for this page: about 1.5 times as fast in a first try, where the goal was 2.5. The work is the same on both
sides: a pass for the pseudo-labels, then a batch and its mixed copy forward and backward in a Wide ResNet 28-2. So only
the speed of convolutions and what surrounds them can differ. Three stages of 32, 64 and 128 channels have 30.8 % of the
products each; Winograd's form, with a quarter of the products, pays from 64 channels on. Convolutions can therefore be
at most 1 / (0.384 + 0.616 / 4) = 1.9 times as fast; with the 1.8 to 2.4 measured for these layers, 1.4 to 1.6 times.
"""


def _backbone(results: Results) -> str:
    title = "## EfficientNet-Lite0 beside onnxruntime\n\n"
    if "backbone" not in results:
        return title + _missing("backbone")
    sizes = results["backbone"]["sizes"]
    lines = [
        [str(one["side"]), *(f"{ms:.2f} ms" for ms in one["ms"].values()),
         f"{one['ms']['onnxruntime'] / one['ms']['fedfew']:.2f} ×"]
        for one in sizes
    ]  # fmt: skip
    head = ["pixels a side", *(f"{name}, an image" for name in sizes[0]["ms"]), "fedfew against onnxruntime"]
    return title + _table(head, lines) + "\n" + BACKBONE_NOTE


def _scaling(results: Results) -> str:
    title = "## As the number of clients grows\n\n"
    if "scaling" not in results:
        return title + _missing("scaling")
    every = results["scaling"]["rows"]
    result = title + "![Growth with K and m](performance/scaling.svg)\n\n"
    result += "Nobody trains here (no epochs), so that all that is left is what surrounds the training. Ten clients a"
    result += " round of the small cnn while K grows; then all K of ResNet-9 of width 16, whose model has 1.6 MB.\n\n"
    head = ["K", "a round", "fleet", "around the training", "record and files", "start", "server's peak memory"]
    lines = [_scaling_line(row) for row in every if row["family"] in ("K", "m")]
    result += _table(head, lines) + "\n" + _whatever_k(every)
    tried = [row for row in every if row["family"] == "screen"]
    if tried:
        alike = next(row for row in every if row["family"] == "K" and row["K"] == tried[0]["K"] and not row["workers"])
        result += (
            "\nThe screen is a cost of its own, whatever K is: it tries every update on up to 200 of the server's"
            f" labels (`gate.images`), here 100. With it the round takes {1e3 * tried[0]['around']:.1f} instead of"
            f" {1e3 * alike['around']:.1f} ms, for eleven forward passes of 100 images.\n"
        )
    workers = [row for row in every if row["family"] == "workers"]
    base = workers[0]["seconds"]["clients"]
    result += "\nWith training (ten clients a round of 128 images, small cnn), by number of workers:\n\n"
    lines = [
        [_fleet(row), f"{row['seconds']['clients']:.2f} s", f"{base / row['seconds']['clients']:.2f} ×"]
        for row in workers
    ]
    return result + _table(["fleet", "clients of a round", "against inline"], lines)


def _whatever_k(every: list[dict[str, Any]]) -> str:
    """What most of the time around the training is where K is largest."""
    inline = [row for row in every if row["family"] == "K" and not row["workers"]]
    most, fewest = max(inline, key=lambda row: row["K"]), min(inline, key=lambda row: row["K"])
    turns, before = 1e3 * most["seconds"]["clients"], 1e3 * fewest["seconds"]["clients"]
    return (
        f"\nWith {most['K']:,} clients, {turns:.1f} of the {1e3 * most['around']:.1f} ms inline are the turns of the"
        f" {most['m']} clients that were asked (take the message, load the network, read it out, check the answer):"
        f" {turns / most['m']:.2f} ms each, {before / fewest['m']:.2f} where K is {fewest['K']}. So the time does not"
        f" grow with K; 5 ms would be at most {5 / most['m']:.2f} ms a client, for everything.\n"
    )


def _fleet(row: dict[str, Any]) -> str:
    return f"pool of {row['workers']}" if row["workers"] else "inline"


def _scaling_line(row: dict[str, Any]) -> list[str]:
    overhead, files = f"{1e3 * row['around']:.1f} ms", f"{1e3 * row['files']:.1f} ms"
    start, memory = f"{row['ready']:.1f} s", f"{row['peak_mb']:.0f} MB"
    return [f"{row['K']:,}", f"{row['m']:,}", _fleet(row), overhead, files, start, memory]


def _measured(results: Results) -> str:
    result = "## How to run it again\n\nWith nothing else running; `pip install '.[bench]'` brings Flower and Ray.\n\n"
    lines = []
    for name, command in COMMANDS.items():
        about = results.get(name)
        took = f"{max(about['minutes'], 1):.0f} min" if about else "–"
        lines.append([f"`{command}`", took, _machine(about["machine"]) if about else "not measured yet"])
    return result + _table(["command", "took", "measured on"], lines)


def _machine(about: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {about[name]}" for name in ("torch", "flwr", "ray", "pillow") if name in about)
    day = datetime.fromtimestamp(about["taken"], UTC).date().isoformat()
    other = f"{about['busy_before']:.0%} before, up to {about['busy_after']:.0%} meanwhile"
    return (
        f"{about['cores']} cores of an {about['processor']} ({about['capability']}), {about['memory_gb']} GB, Python"
        f" {about['python']}, {versions}; {day}; other work took {other}"
    )
