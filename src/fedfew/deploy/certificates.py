"""Keys and certificates of a network: one authority, one server certificate, one key pair for each site."""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedfew.core.errors import FedfewError

_PEM = serialization.Encoding.PEM
_OPENSSH = serialization.Encoding.OpenSSH
OFTEN_USED = ec.SECP256R1()
"""Curve of the keys that sign every connection or request: forty times as fast as P-384, so strangers cost less."""


@dataclass(frozen=True)
class Pair:
    """A certificate (or public key) and its private key, as the bytes of their files."""

    public: bytes
    private: bytes


def authority(name: str, days: int) -> Pair:
    """A new certificate authority for one network."""
    key = ec.generate_private_key(ec.SECP384R1())
    subject = _name(f"fedfew network {name}")
    certificate = (
        _blank(subject, subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(key, hashes.SHA384())
    )
    return Pair(certificate.public_bytes(_PEM), _private(key))


def server_certificate(issuer: Pair, host: str, days: int) -> Pair:
    """A certificate for the server: valid for its name and for the machine itself."""
    signer = serialization.load_pem_private_key(issuer.private, None)
    above = x509.load_pem_x509_certificate(issuer.public)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise FedfewError("E505", "ca.key", "is not an elliptic-curve key")
    key = ec.generate_private_key(OFTEN_USED)
    names = [_alternative(one) for one in dict.fromkeys([host, "localhost", "127.0.0.1", "::1"])]
    certificate = (
        _blank(_name(host), above.subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA384())
    )
    return Pair(certificate.public_bytes(_PEM), _private(key))


def site_key(comment: str) -> Pair:
    """A site's key pair in OpenSSH format, which Flower reads."""
    key = ec.generate_private_key(OFTEN_USED)
    private = key.private_bytes(_PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    public = key.public_key().public_bytes(_OPENSSH, serialization.PublicFormat.OpenSSH)
    return Pair(public + f" {comment}\n".encode(), private)


def as_flower_sends_it(public: bytes) -> str:
    """A site's public key in the form in which Flower reports who is online."""
    key = serialization.load_ssh_public_key(public)
    return key.public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode().strip()


def check_certificate(path: Path, issuer: Path | None = None) -> datetime:
    """When the certificate expires; E505 if it has expired, is not valid yet, or another authority issued it."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        above = x509.load_pem_x509_certificate(issuer.read_bytes()) if issuer else None
    except (OSError, ValueError) as error:
        raise FedfewError("E505", str(path), f"cannot be read: {error}") from None
    now = datetime.now(UTC)
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > last:
        raise FedfewError("E505", str(path), f"expired on {last:%Y-%m-%d %H:%M} UTC")
    if now < first:
        reason = f"is not valid before {first:%Y-%m-%d %H:%M} UTC; the clock says {now:%Y-%m-%d %H:%M}"
        raise FedfewError("E505", str(path), reason)
    if above is not None:
        try:
            certificate.verify_directly_issued_by(above)
        except Exception:
            raise FedfewError("E505", str(path), f"was not issued by {issuer}") from None
    return last


def check_private(path: Path) -> str:
    """E505 if a private key can be read by others."""
    if path.stat().st_mode & 0o077:
        raise FedfewError("E505", str(path), "can be read by others", f"Run chmod 600 {path}")
    return "readable by this user only"


def check_site_key(private: Path) -> str:
    """E505 if a site's private key is unusable or readable by others."""
    try:
        serialization.load_ssh_private_key(private.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise FedfewError("E505", str(private), f"cannot be read: {error}") from None
    return check_private(private)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _alternative(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _blank(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    start = now - timedelta(minutes=10)  # clocks of two machines differ
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(start, now + timedelta(days=days) - timedelta(seconds=1)))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    unused = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only")
    flags = dict.fromkeys((*unused, "decipher_only"), False)
    return x509.KeyUsage(digital_signature=True, key_cert_sign=signs, crl_sign=signs, **flags)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
