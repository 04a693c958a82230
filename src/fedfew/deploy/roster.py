"""The members of a network with keys that its authority has signed: so sites know each other, not only the server."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedfew.core.errors import FedfewError
from fedfew.core.storage import write_atomically
from fedfew.deploy.certificates import fingerprint
from fedfew.deploy.plan import ServerPlan, open_bundle
from fedfew.secure.identity import BY_AUTHORITY, POINT, Identity, member_text, plain


def sign_member(plan: ServerPlan, name: str) -> bytes:
    """The row of a member; signed once, while the authority's key is on this machine. E505 if it is not."""
    path, number = plan.folder / "keys" / f"{name}.member", plan.sites.index(name)
    key = serialization.load_ssh_public_key(plan.key_of(name))
    assert isinstance(key, ec.EllipticCurvePublicKey)  # it was, when the site was admitted
    point = key.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
    if path.is_file() and path.read_bytes()[:POINT] == point:
        return path.read_bytes()
    private = plan.folder / "ca.key"
    if not private.is_file():
        remedy = f"Put ca.key back and admit {name} again; secure sums need a signature under its key"
        raise FedfewError("E505", str(private), f"is missing, and has not signed the key of {name}", remedy)
    authority = serialization.load_pem_private_key(private.read_bytes(), None)
    assert isinstance(authority, ec.EllipticCurvePrivateKey)
    write_atomically(path, signed_member(authority, plan.network, number, point))
    return path.read_bytes()


def signed_member(authority: ec.EllipticCurvePrivateKey, network: str, number: int, point: bytes) -> bytes:
    """A member's key with the authority's signature."""
    signature = authority.sign(member_text(network, number, point), ec.ECDSA(hashes.SHA384()))
    return point + plain(signature, BY_AUTHORITY // 2)


def server_identity(plan: ServerPlan, names: Iterable[str], trial: bool) -> Identity:
    """The keys of the sites that a run asks, for the sites; E422 if one is not signed by the present authority."""
    rows = {plan.sites.index(name): sign_member(plan, name) for name in names}
    return Identity(network=plan.network, authority=plan.ca.read_bytes(), sites=len(plan.sites) if trial else 0).meet(
        rows
    )


def site_identity(folder: Path, about: Mapping[str, Any], trial: bool) -> Identity:
    """A site with its own key, among the members of the plan that it was asked about."""
    plan = open_bundle(folder)
    key = serialization.load_ssh_private_key(plan.key.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)

    def agreed(number: int, row: bytes) -> bool:
        return bool(about["members"].get(str(number)) == _shown(row))

    own = {plan.number: key}
    return Identity(own.get, plan.network, plan.ca.read_bytes(), agreed, plan.sites if trial else 0)


def fingerprints(members: Mapping[int, bytes]) -> dict[str, str]:
    """The members as a plan shows them: by the fingerprints that were read out when they joined."""
    return {str(number): _shown(row) for number, row in members.items()}


def _shown(row: bytes) -> str:
    key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), row[:POINT])
    return fingerprint(key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
