"""Keys and certificates of a network: one authority, one server certificate, one key pair for each site."""

import hashlib
import ipaddress
from base64 import b64decode, b64encode
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedfew.core.errors import FedfewError

_PEM = serialization.Encoding.PEM
_OPENSSH = serialization.Encoding.OpenSSH
_UNREADABLE = (ValueError, UnsupportedAlgorithm, NotImplementedError)
"""What `cryptography` raises for a text that is no key: the last for points in their compressed form."""
OFTEN_USED = ec.SECP256R1()
"""Curve of the keys that sign every connection or request: forty times as fast as P-384, so strangers cost less."""

WARNING_DAYS = 60


@dataclass(frozen=True)
class Pair:
    """A certificate (or public key) and its private key, as the bytes of their files."""

    public: bytes
    private: bytes


def authority(name: str, days: int) -> Pair:
    """A new certificate authority for one network."""
    key = ec.generate_private_key(ec.SECP384R1())
    return Pair(_authority_certificate(key, _name(f"fedfew network {name}"), days), _private(key))


def _authority_certificate(key: ec.EllipticCurvePrivateKey, subject: x509.Name, days: int) -> bytes:
    return (
        _blank(subject, subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(key, hashes.SHA384())
        .public_bytes(_PEM)
    )


def renewed_authority(issuer: Pair, days: int) -> Pair:
    """A new certificate of the same authority: same name and key, so what it signs is trusted with the old one too."""
    key, old = _elliptic(issuer.private, "ca.key"), x509.load_pem_x509_certificate(issuer.public)
    return Pair(_authority_certificate(key, old.subject, days), issuer.private)


def server_certificate(issuer: Pair, host: str, days: int, private: bytes = b"") -> Pair:
    """A certificate for the server: for its name and the machine itself; its key is new unless one is given."""
    signer, above = _elliptic(issuer.private, "ca.key"), x509.load_pem_x509_certificate(issuer.public)
    key = _elliptic(private, "server.key") if private else ec.generate_private_key(OFTEN_USED)
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
    return Pair(public_half(private, comment), private)


def public_half(private: bytes, comment: str) -> bytes:
    """The public key of a site's private one, in OpenSSH format."""
    key = serialization.load_ssh_private_key(private, None).public_key()
    return key.public_bytes(_OPENSSH, serialization.PublicFormat.OpenSSH) + f" {comment}\n".encode()


def fingerprint(public: bytes) -> str:
    """The first half of the SHA-256 of a site's public key, in groups that can be read aloud; E513 if it is none."""
    try:
        serialization.load_ssh_public_key(public)
        return _grouped(b64decode(public.split()[1], validate=True))
    except (*_UNREADABLE, IndexError) as error:
        raise FedfewError("E513", "key", f"is not a public key: {error}") from None


def authority_fingerprint(certificate: bytes) -> str:
    """The fingerprint of an authority's key, which a renewed certificate shares.

    E513 unless it is one certificate that its own key has signed: TLS would trust a second one in the same text, which
    the fingerprint does not show.
    """
    try:
        alone = x509.load_pem_x509_certificate(certificate)
        alone.verify_directly_issued_by(alone)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise FedfewError("E513", "ca", f"is not the certificate of an authority: {error}") from None
    if alone.public_bytes(_PEM).strip() != certificate.strip():
        raise FedfewError("E513", "ca", "holds more than one certificate")
    key = alone.public_key()
    return _grouped(key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo))


def _grouped(content: bytes) -> str:
    text = hashlib.sha256(content).hexdigest()[:32]
    return " ".join(text[i : i + 4] for i in range(0, 32, 4))


def signed(private: bytes, content: bytes) -> str:
    """A site's signature of a text."""
    key = serialization.load_ssh_private_key(private, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return b64encode(key.sign(content, ec.ECDSA(hashes.SHA256()))).decode()


def has_signed(public: bytes, content: bytes, signature: str) -> bool:
    """Whether the key made the signature; only keys of the kind that `site_key` makes can."""
    try:
        key = serialization.load_ssh_public_key(public)
        if not isinstance(key, ec.EllipticCurvePublicKey):
            return False
        key.verify(b64decode(signature, validate=True), content, ec.ECDSA(hashes.SHA256()))
    except (*_UNREADABLE, InvalidSignature):
        return False
    return True


def as_flower_sends_it(public: bytes) -> str:
    """A site's public key in the form in which Flower reports who is online."""
    key = serialization.load_ssh_public_key(public)
    return key.public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode().strip()


def expiry(certificate: bytes) -> datetime:
    """When a certificate ends; E505 if it is none."""
    try:
        return x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    except ValueError as error:
        raise FedfewError("E505", "certificate", f"cannot be read: {error}") from None


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


def check_expiry(path: Path, issuer: Path | None = None) -> str:
    """When the certificate expires, in words; E505 if it is not usable, E514 if it will soon not be."""
    last = check_certificate(path, issuer)
    if (days := (last - datetime.now(UTC)).days) < WARNING_DAYS:
        raise FedfewError("E514", str(path), f"expires in {days} days, on {last:%Y-%m-%d}")
    return f"valid until {last:%Y-%m-%d}"


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


def _elliptic(private: bytes, name: str) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(private, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FedfewError("E505", name, "is not an elliptic-curve key")
    return key


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
