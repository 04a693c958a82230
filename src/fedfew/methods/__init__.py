"""Methods: one file each, and one line each in the registry below."""

from typing import TYPE_CHECKING, Any

from fedfew.core.settings import Registry

if TYPE_CHECKING:
    from fedfew.methods.entry import Entry


def _entry(target: Any) -> "Entry[Any]":
    """An installed package may offer an Entry, or a method's class alone."""
    from fedfew.methods.entry import Entry  # noqa: PLC0415 - needs torch, which a list of names does not

    return target if isinstance(target, Entry) else Entry(target)


METHODS: "Registry[Entry[Any]]" = Registry(
    "fedfew.methods",
    {
        "fedfew": ("fedfew:FEDFEW", "Pseudo-labels once a round; the server trains last."),
        "fedmoments": ("fedmoments.method:FEDMOMENTS", "Class moments from clients of different class mix."),
        "fedmix": ("fedmix:FEDMIX", "FedMix (the paper): server and clients train, three models mix."),
        "fedmatch": ("fedmatch:FEDMATCH", "FedMatch with its published settings."),
        "fedmatch-lite": ("fedmatch:FEDMATCH_LITE", "FedMatch without helpers from other clients."),
        "semifl": ("semifl:SEMIFL", "SemiFL with its published settings."),
        "fl2": ("fl2:FL2_ENTRY", "(FL)² with its published settings."),
        "cbafed": ("cbafed:CBAFED", "CBAFed with the settings of its official code."),
        "fedsiam-mt": ("fedsiam:FEDSIAM_MT", "FedSiam: clients send online and target network."),
        "fedsiam-pi": ("fedsiam:FEDSIAM_PI", "FedSiam: clients send the online network only."),
        "ds-fl": ("dsfl:DS_FL", "Probabilities on a shared open set instead of weights."),
        "grouping": ("grouping:GROUPING", "FixMatch clients, a server in parallel, means within random groups."),
        "fedavg": ("fedavg:FEDAVG", "Server training, client training on an objective, aggregation."),
        "fedprox": ("fedavg:FEDPROX", "FedAvg with a pull of each client towards the server's model."),
        "fedbn": ("fedavg:FEDBN", "FedAvg whose clients keep their own batch norm."),
        "fedadam": ("fedopt:FEDADAM", "FedAvg with Adam at the server."),
        "fedyogi": ("fedopt:FEDYOGI", "FedAvg with Yogi at the server."),
        "scaffold": ("scaffold:SCAFFOLD", "FedAvg with control variates against client drift; twice the traffic."),
        "server-only": ("server_only:SERVER_ONLY", "The labels alone: the baseline to beat."),
        "labels-names": ("labels_names:LABELS_NAMES", "Labels and class names that the backbone knows."),
        "all-labels": ("all_labels:ALL_LABELS", "Clients train on true labels; in simulation only."),
        "pooled": ("pooled:POOLED", "All labels, no federation: the upper bound; in simulation only."),
    },
    _entry,
)
