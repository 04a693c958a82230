"""Methods: one file each, and one line each in the registry below."""

from typing import TYPE_CHECKING, Any

from fedfew.core.registry import Registry

if TYPE_CHECKING:
    from fedfew.methods.entry import Entry


def _entry(target: Any) -> "Entry[Any]":
    """An installed package may offer an Entry, or a method's class alone."""
    from fedfew.methods.entry import Entry  # noqa: PLC0415 - needs torch, which a list of names does not

    return target if isinstance(target, Entry) else Entry(target)


METHODS: "Registry[Entry[Any]]" = Registry(
    "fedfew.methods",
    {
        "fedfew": ("fedfew.methods.fedfew:FEDFEW", "Pseudo-labels once a round; the server trains last."),
        "fedmoments": (
            "fedfew.methods.fedmoments.method:FEDMOMENTS",
            "Class moments from clients of different class mix; for models with a frozen backbone.",
        ),
        "fedmix": (
            "fedfew.methods.fedmix:FEDMIX",
            "FedMix (the paper): server and clients train, three models mix.",
        ),
        "fedmatch": ("fedfew.methods.fedmatch:FEDMATCH", "FedMatch with its published settings."),
        "fedmatch-lite": ("fedfew.methods.fedmatch:FEDMATCH_LITE", "FedMatch without helpers from other clients."),
        "semifl": ("fedfew.methods.semifl:SEMIFL", "SemiFL with its published settings."),
        "fl2": ("fedfew.methods.fl2:FL2_ENTRY", "(FL)² with its published settings."),
        "cbafed": ("fedfew.methods.cbafed:CBAFED", "CBAFed with the settings of its official code."),
        "fedsiam-mt": ("fedfew.methods.fedsiam:FEDSIAM_MT", "FedSiam: clients send online and target network."),
        "fedsiam-pi": ("fedfew.methods.fedsiam:FEDSIAM_PI", "FedSiam: clients send the online network only."),
        "ds-fl": ("fedfew.methods.dsfl:DS_FL", "Probabilities on a shared open set instead of weights."),
        "grouping": (
            "fedfew.methods.grouping:GROUPING",
            "FixMatch clients, a server in parallel, averages within random groups.",
        ),
        "fedavg": ("fedfew.methods.fedavg:FEDAVG", "Server training, client training on an objective, aggregation."),
        "fedprox": ("fedfew.methods.fedavg:FEDPROX", "FedAvg with a pull of each client towards the server's model."),
        "fedbn": ("fedfew.methods.fedavg:FEDBN", "FedAvg whose clients keep their own batch norm."),
        "fedadam": ("fedfew.methods.fedopt:FEDADAM", "FedAvg with Adam at the server."),
        "fedyogi": ("fedfew.methods.fedopt:FEDYOGI", "FedAvg with Yogi at the server."),
        "scaffold": (
            "fedfew.methods.scaffold:SCAFFOLD",
            "FedAvg with control variates against client drift; twice the traffic.",
        ),
        "server-only": ("fedfew.methods.server_only:SERVER_ONLY", "The labels alone: the baseline to beat."),
        "all-labels": (
            "fedfew.methods.all_labels:ALL_LABELS",
            "Clients train on true labels; in simulation only.",
        ),
        "pooled": (
            "fedfew.methods.pooled:POOLED",
            "All labels, no federation: the upper bound; in simulation only.",
        ),
    },
    _entry,
)
