"""Builds a site for the config that a server sends: in a trial from the config's partition, else from its own data."""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfew.config.names import SITES, refused_code
from fedfew.config.parts import federation_of, prepare, sites_of
from fedfew.config.schema import check
from fedfew.config.tree import Config
from fedfew.core.errors import FedfewError
from fedfew.core.samples import Samples
from fedfew.core.storage import digest
from fedfew.core.types import Oracle
from fedfew.data.clients import ClientsData
from fedfew.deploy.site.answers import Ready
from fedfew.deploy.site.files import SumSecrets
from fedfew.deploy.site.images import load_samples
from fedfew.deploy.site.limits import SiteTerms, check_about, check_count
from fedfew.deploy.versions import check_versions
from fedfew.runtime.site import Sites
from fedfew.transforms import Privacy

if TYPE_CHECKING:  # where a run has secure sums
    from fedfew.secure.identity import Identity


def trial_site(number: int, sites: int, terms: SiteTerms, folder: Path) -> Callable[[Mapping[str, Any]], Ready]:
    """For a trial on one machine: the clients k with k mod sites = number, with the config's partition.

    ``folder``: the site's, with its key.
    """

    def build(head: Mapping[str, Any]) -> Ready:
        check_versions(head["versions"])
        refuse_foreign_code(head["config"], terms.allow_code)
        config = check(dict(head["config"]), allow_code=terms.allow_code)
        federation = federation_of(config)
        if federation.partition.hash != head["about"]["partition"]:
            raise FedfewError("E417", "data", "gives another partition here than at the server")
        data, network = prepare(config, federation, backbone=str(head["about"]["backbone"]))
        everything = sites_of(config, data, network, _identity(config, folder, head, trial=True))
        return Ready(
            everything, lambda client: client % sites == number, trial=True, secrets=_secrets(everything, folder)
        )

    return build


def real_site(number: int, data: Path, terms: SiteTerms, folder: Path) -> Callable[[Mapping[str, Any]], Ready]:
    """For a real network: the site's own samples are those of the client with the site's number.

    ``folder``: the site's, with its key.
    """
    loaded: dict[str, tuple[Samples, str]] = {}

    def build(head: Mapping[str, Any]) -> Ready:
        check_versions(head["versions"])
        config, about = checked_config(head["config"], terms.allow_code), head["about"]
        check_privacy(config.privacy, terms)
        classes, most = check_about(about, terms), config.privacy.group if config.privacy.unit == "image" else 0
        form = json.dumps([about["samples"], most], sort_keys=True)
        if form not in loaded:
            loaded.clear()
            own_samples = load_samples(data, about["samples"], most, terms.group)
            loaded[form] = own_samples, digest(own_samples.data.numpy().tobytes())
        samples, fingerprint = loaded[form]
        check_count(len(samples), terms)
        site = ClientsData.of_site(number, samples, classes)
        prepared, network = prepare(config, site, backbone=str(about["backbone"]))
        own = sites_of(config, prepared, network, _identity(config, folder, head, trial=False))
        own = replace(own, fewest=terms.min_class)
        return Ready(
            own, lambda client: client == number, config.privacy, fingerprint, max_weight=terms.max_weight,
            secrets=_secrets(own, folder),
        )  # fmt: skip

    return build


def _identity(config: Config, folder: Path, head: Mapping[str, Any], trial: bool) -> "Identity | None":
    """The site as the others of a secure sum know it."""
    if config.privacy.sums != "secure":
        return None
    from fedfew.deploy.roster import site_identity  # noqa: PLC0415 - where a run has secure sums

    return site_identity(folder, head["about"], trial)


def _secrets(sites: Sites, folder: Path) -> Callable[[str, int], SumSecrets] | None:
    return partial(SumSecrets, folder) if sites.sums else None


def check_privacy(privacy: Privacy, terms: SiteTerms) -> None:
    """E417 if a run protects less than this site asks for."""
    noise, clip, image = privacy.noise, privacy.clip, privacy.unit == "image"
    limited = terms.min_noise or terms.max_clip or terms.max_epsilon
    if limited and privacy.sums == "secure" and not terms.shared_noise:
        why = "the sites of a sum add its noise together; this site counts noise of its own only"
        raise FedfewError("E417", "privacy", why, "Its owner may allow it with shared_noise = true in limits.toml")
    if limited and image and terms.unit == "site":
        why = "the noise hides single images; this site needs noise that hides all its images together"
        raise FedfewError("E417", "privacy", why, "Its owner may allow it with --unit image")
    if noise < terms.min_noise or (terms.max_clip and not image and not 0 < clip <= terms.max_clip):
        wanted = f"clip ≤ {terms.max_clip:g} and noise ≥ {terms.min_noise:g}"
        raise FedfewError("E417", "privacy", f"clip is {clip:g} and noise {noise:g}; this site needs {wanted}")


def checked_config(document: Mapping[str, Any], allowed: Collection[str]) -> Config:
    """The server's config, validated again here: a hostile server does not validate what it sends.

    Dataset and partition concern the server only: they are ignored, so that nothing they name is imported.
    """
    refuse_foreign_code({**document, "dataset": {}, "partition": {}}, allowed)
    config = check({**document, "dataset": {}, "partition": {"kind": SITES}}, allow_code=allowed)
    if isinstance(config.method, Oracle) or config.entry.pools:
        reason = f"{config.method_name} needs the labels of this site's images, which nobody has"
        raise FedfewError("E417", "config", reason, "The server must choose a method that trains without them")
    return config


def refuse_foreign_code(document: Mapping[str, Any], allowed: Collection[str]) -> None:
    """E417 if the server's config names code outside fedfew that the site has not allowed.

    ``package.module:Name`` imports and calls whatever is installed here, and a backbone's source is a folder of this
    machine or a download; a site's machine runs what its owner chose.
    """
    source = str(document.get("model", {}).get("source", ""))
    refused = refused_code(document, allowed)
    if refused is None and source and source not in allowed:
        refused = "model.source", source
    if refused:
        key, name = refused
        remedy = f"If you trust it, start the site with --allow-code {name}"
        raise FedfewError("E417", "code", f"{key} of the server's config asks this site to use {name}", remedy)
