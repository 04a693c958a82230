"""Three sites through a real nginx, with the configuration that `deploy server --nginx` prints."""

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from tests.deploy.cluster import Cluster, cluster

from fedfew.deploy.plan import open_server
from fedfew.deploy.processes import free_ports
from fedfew.interface.deploy.printouts import nginx

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("nginx"), reason="needs nginx")]

AROUND = """user root;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/unused;
    uwsgi_temp_path {folder}/unused;
    scgi_temp_path {folder}/unused;
    include {folder}/front.conf;
}}
"""


@contextmanager
def nginx_before(network: Cluster, folder: Path) -> Iterator[Path]:
    """nginx as the network's front; its log of errors."""
    toml = network.plan.folder / "server.toml"
    toml.write_text(toml.read_text().replace("behind = 0", f"behind = {free_ports(1)[0]}"))
    (folder / "front.conf").write_text(nginx(open_server(network.plan.folder)))
    (folder / "nginx.conf").write_text(AROUND.format(folder=folder))
    command = ["nginx", "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log"), "-g", "daemon off;"]
    process = subprocess.Popen(command)
    try:
        yield folder / "error.log"
    finally:
        process.terminate()
        process.wait(30)


def test_three_sites_train_through_nginx_which_forwards_nothing_else(tmp_path: Path) -> None:
    changes = {"fleet.min_clients": 3, "model.width": 16}
    with cluster(tmp_path, changes, sites=("a", "b", "c")) as network, nginx_before(network, tmp_path) as log:
        server = network.server()
        for name in ("a", "b", "c"):
            network.site(name)
        assert network.round_done(1), network.words()
        trusted = ssl.create_default_context(cafile=str(network.plan.ca))
        with httpx.Client(base_url=f"https://127.0.0.1:{network.plan.port}", verify=trusted, trust_env=False) as front:
            for path in ("/v1/runtime/pull-messages", "/v1/control/start-run", "/v1/fleet/push-object/x", "/health"):
                assert front.post(path, content=b"x").status_code == 403, path
            assert front.get("/v1/fleet/pull-messages").status_code == 403
            assert front.post("/v1/fleet/pull-messages", content=b"no key").is_client_error
            assert front.post("/v1/fleet/pull-messages", content=bytes(2 << 20)).status_code == 413
            assert front.get("/fedfew").json()["network"] == network.plan.network
        words = ("deploy", "doctor", "client", str(tmp_path / "sites" / "a"), "--data", str(tmp_path / "a.npz"))
        checked = network.start(*words)
        assert checked.wait() == 0, checked.log.with_suffix(".out").read_text()
        assert server.wait(300) == 0, network.words()
    assert [len(record["cohort"]) - len(record["missing"]) for record in network.rounds()] == [3, 3, 3]
    assert "[alert]" not in log.read_text() and "[crit]" not in log.read_text()
