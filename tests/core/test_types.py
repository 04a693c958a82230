"""The seams: labels have no way into ``train_client``, by the fields of a site and by its type."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import torch

import fedfew.core
from fedfew.core.layout import Reply, nbytes
from fedfew.core.samples import LabeledSet
from fedfew.core.types import ClientSite, OracleSite

CORE = Path(fedfew.core.__file__).parent


def test_a_client_site_has_images_and_no_labels() -> None:
    fields = {f.name for f in dataclasses.fields(ClientSite)}
    assert fields == {"client", "network", "samples", "classes", "memory", "own_view", "fewest"}
    assert "LabeledSet" not in " ".join(str(f.type) for f in dataclasses.fields(ClientSite))
    assert LabeledSet in [f.type for f in dataclasses.fields(OracleSite)]
    assert not issubclass(OracleSite, ClientSite) and not issubclass(ClientSite, OracleSite)


def type_check(source: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """mypy on a snippet together with the core alone, so that it takes a second."""
    snippet = folder / "snippet.py"
    snippet.write_text(source, "utf-8")
    files = [str(CORE / name) for name in ("types.py", "layout.py", "network.py", "errors.py", "samples.py")]
    options = ["--follow-imports=skip", "--explicit-package-bases", "--cache-dir", str(folder / "cache")]
    command = [sys.executable, "-m", "mypy", "--config-file=", *options, *files, str(snippet)]
    return subprocess.run(command, capture_output=True, text=True, env={"MYPYPATH": str(CORE.parent.parent)})


def test_the_type_checker_stops_labels_at_the_door(tmp_path: Path) -> None:
    source = """
from fedfew.core.types import Method, ClientSite, OracleSite, Payload
import torch

def samples(site: ClientSite) -> object:
    return site.samples

def labels(site: ClientSite) -> object:
    return site.labels

def labeled(site: ClientSite) -> object:
    return site.labeled

def smuggle(method: Method, payload: Payload, site: OracleSite, rng: torch.Generator) -> object:
    return method.train_client(payload, site, rng)
"""
    found = type_check(source, tmp_path).stdout.splitlines()
    errors = [line for line in found if "error" in line and "snippet.py" in line]
    assert len(errors) == 3, found
    assert '"ClientSite" has no attribute "labels"' in errors[0]
    assert '"ClientSite" has no attribute "labeled"' in errors[1]
    assert 'incompatible type "OracleSite"; expected "ClientSite"' in errors[2]


def test_bytes_are_counted_as_they_travel() -> None:
    reply: Reply = {
        "index": torch.zeros(5, dtype=torch.int32),
        "change": torch.zeros(5),
        "lr": torch.zeros((), dtype=torch.float64),
    }
    assert nbytes(reply) == 5 * 4 + 5 * 4 + 8
