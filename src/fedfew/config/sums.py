"""Secure sums of a config: what server and sites need for them, and why a config cannot have them."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator

from fedfew.core.extras import require

require("privacy", "privacy.sums")

from fedfew.aggregators.weighted import capped, fedfreq_weights  # noqa: E402 - only with the extra
from fedfew.config.tree import Config  # noqa: E402
from fedfew.core.errors import FedfewError  # noqa: E402
from fedfew.core.network import Network  # noqa: E402
from fedfew.core.types import ServerState  # noqa: E402
from fedfew.runtime.wire import Wire  # noqa: E402
from fedfew.secure.client import SumClient  # noqa: E402
from fedfew.secure.exchange import SecureExchange  # noqa: E402
from fedfew.secure.identity import Identity, simulated  # noqa: E402
from fedfew.secure.terms import Rules  # noqa: E402

MEANS = ("fedavg", "uniform", "fedfreq")
"""Aggregators whose weights are known before a client answers."""
MOST_SITES = 400
"""In one sum: every site sends each other one an envelope."""
ELSEWHERE = ("fleet", "dataset", "partition")
"""Sections that may differ between the machines of a run."""


def exchange_of(config: Config) -> SecureExchange:
    """How the server collects updates that it sees no single one of; a network's fleet knows who its sites are."""
    return SecureExchange(_rules(config), simulated(config.seed), _weights(config))


def client_of(config: Config, network: Network, identity: Identity | None = None) -> SumClient:
    """How clients answer."""
    schema = Wire(config.method, config.transforms).reply_schema(network.layout)
    return SumClient(_rules(config), identity or simulated(config.seed), schema)


def _rules(config: Config) -> Rules:
    document = {key: value for key, value in config.document.items() if key not in ELSEWHERE}
    privacy, rule = config.privacy, config.aggregator
    return Rules(
        run=hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest(),
        cohort=config.cohort,
        share=privacy.threshold,
        honest=privacy.honest,
        reach=privacy.reach,
        most_images=config.gate.max_examples,
        by_images=rule.name == "fedavg" or rule.settings.get("by") == "frequency×examples",
        only_active=config.entry.sums == "active",
        uneven=rule.name == "fedfreq",
        clip=privacy.clip,
        noise=privacy.noise,
    )


def _weights(config: Config) -> Callable[[ServerState, Iterable[int]], dict[int, float]]:
    """What the server weighs each selected client with; FedFreq counts the present round, as if all answered."""

    def weights(state: ServerState, cohort: Iterable[int]) -> dict[int, float]:
        chosen = list(cohort)
        if config.aggregator.name != "fedfreq":
            return dict.fromkeys(chosen, 1.0)
        weights = fedfreq_weights([state.answered(k) + 1 for k in chosen])
        return dict(zip(chosen, capped(weights, config.aggregator.settings.get("cap", 0.0)), strict=True))

    return weights


def consequences(config: Config) -> str:
    """What secure sums mean for a run, shown before it; nothing where it has none."""
    privacy = config.privacy
    if privacy.sums != "secure" or not config.entry.asks_clients:
        return ""
    rules, sites = _rules(config), config.cohort
    told = (
        f"Secure sums: the server sees the sum over at least {rules.threshold(sites)} of {sites} clients a round, or "
        "nothing. It can neither check a single update nor weigh it down, so a hostile client is bounded only by what "
        "fits into a sum."
    )
    if privacy.noise:
        told += f" Clients add the noise together: ε holds while at least {rules.honest_of(sites)} of them are honest."
    else:
        told += " Two sums that differ by one client show its part; only noise (privacy.noise) bounds that."
    if getattr(config.method, "sums_only", False):
        told += (
            " fedmoments cannot use how the clients' means differ, nor take back their scanners; "
            "class directions come from the backbone alone."
        )
    return told


def sum_misfits(config: Config) -> Iterator[FedfewError]:
    """Why this config cannot have secure sums."""
    privacy, entry, rule = config.privacy, config.entry, config.aggregator
    if not entry.asks_clients:
        return
    if not entry.sums:
        why = f"the server of method {config.method_name} needs more than a sum of what its clients send"
        yield FedfewError("E113", "privacy.sums", why, "Use fedavg, fedprox, fedmix, semifl or fedmoments")
    elif rule.name not in MEANS or (rule.settings.get("cap") and rule.settings.get("by") != "frequency"):
        why = f"the weights of aggregator {rule.name} depend on the answers, which the server does not see one by one"
        yield FedfewError("E113", "aggregator.name", why, f"Use {', '.join(MEANS)} (without cap where images count)")
    if getattr(config.method, "sums_only", False) and privacy.clip:
        why = f"method {config.method_name} divides by counts of images, which do not travel with clipped sums"
        yield FedfewError("E113", "privacy.clip", why, 'Set privacy.unit = "image" without clip, or sums = "open"')
    if config.compression.kind != "none":
        why = "masked numbers cannot be compressed"
        yield FedfewError("E113", "compression.kind", why, "Remove the section [compression]")
    if not config.own_sites and not 3 <= config.cohort <= MOST_SITES:
        why = f"{config.cohort} clients are selected in a round; a secure sum has 3 to {MOST_SITES}"
        yield FedfewError("E113", "participation", why, "Change participation or clients")
    if privacy.honest > privacy.threshold:
        why = "more sites are to add the noise than must stay in a sum"
        yield FedfewError("E113", "privacy.honest", why, "Set privacy.honest ≤ privacy.threshold")
