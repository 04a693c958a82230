"""The members of a network with keys that its authority has signed: so sites know each other, not only the server."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedfew.core.errors import FedfewError
from fedfew.core.storage import write_atomically
from fedfew.deploy.plan import ServerPlan, open_bundle
from fedfew.secure.identity import NetworkIdentity, signed_member


def sign_member(plan: ServerPlan, name: str) -> bytes:
    """The row of a member; signed once, while the authority's key is on this machine. E505 if it is not."""
    path, number = plan.folder / "keys" / f"{name}.member", plan.sites.index(name)
    key = serialization.load_ssh_public_key(plan.public_key(name).read_bytes())
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise FedfewError("E505", str(plan.public_key(name)), "is not an elliptic-curve key")
    if path.is_file() and NetworkIdentity(plan.network, plan.ca.read_bytes()).is_row_of(number, path.read_bytes(), key):
        return path.read_bytes()
    private = plan.folder / "ca.key"
    if not private.is_file():
        remedy = f"Put ca.key back and admit {name} again; secure sums need a signature under its key"
        raise FedfewError("E505", str(private), f"is missing, and has not signed the key of {name}", remedy)
    authority = serialization.load_pem_private_key(private.read_bytes(), None)
    assert isinstance(authority, ec.EllipticCurvePrivateKey)
    write_atomically(path, signed_member(authority, plan.network, number, key))
    return path.read_bytes()


def server_identity(plan: ServerPlan, names: Iterable[str], trial: bool) -> NetworkIdentity:
    """The keys of the sites that a run asks, for the sites."""
    rows = {plan.sites.index(name): sign_member(plan, name) for name in names}
    return NetworkIdentity(plan.network, plan.ca.read_bytes(), sites=len(plan.sites) if trial else 0).meet(rows)


def site_identity(folder: Path, about: Mapping[str, Any], trial: bool) -> NetworkIdentity:
    """A site with its own key, among the members of the plan that it was asked about."""
    plan = open_bundle(folder)
    key = serialization.load_ssh_private_key(plan.key.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    agreed = {int(number): str(mark) for number, mark in about["members"].items()}
    return NetworkIdentity(plan.network, plan.ca.read_bytes(), plan.number, key, agreed, plan.sites if trial else 0)
