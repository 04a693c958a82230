"""Texts that `fedfew deploy` prints for copying: the next commands, an nginx configuration, systemd units."""

import shlex
import sys
from dataclasses import fields
from pathlib import Path

from fedfew.deploy.front.proxy import CALLS, OBJECT_LIMIT, versions
from fedfew.deploy.plan import ServerPlan
from fedfew.deploy.site.build import SiteTerms


def next_steps(plan: ServerPlan) -> str:
    """The commands that follow `deploy init`."""
    network, first = plan.folder.parent, plan.sites[0]
    here = shlex.quote(str(network))
    lines = [
        f"Network {plan.name}: server {plan.host}:{plan.port}, sites {', '.join(plan.sites)}.",
        "",
        "1. Choose what to train: edit " + shlex.quote(str(plan.folder / "config.toml")),
        f"2. On the server:     fedfew deploy server {here}",
        "3. Give each site its bundle, over a channel you trust (it contains the site's private key):",
        *(f"                        {network / 'bundles' / site}.tar" for site in plan.sites),
        f"4. At each site:      fedfew deploy client {first}.tar --data FOLDER",
        f"If something does not work: fedfew deploy doctor server {here}, fedfew deploy doctor client {first}.tar",
    ]
    return "\n".join(lines)


def nginx(plan: ServerPlan) -> str:
    """A front for production: only the Fleet API is forwarded; everything else of the SuperLink stays inside."""
    folder, port = plan.folder.absolute(), plan.behind or plan.port + 1
    reported = ", ".join(f'"{name}": "{value}"' for name, value in (versions() | {"network": plan.network}).items())
    return f"""# {plan.name}: TLS front of the SuperLink. Write behind = {port} into server.toml
# Goes into nginx's http section, e.g. as a file in conf.d. nginx does not know the sites' keys: it limits what
# anyone may send, and the SuperLink refuses clients without a key.
limit_conn_zone $binary_remote_addr zone=fedfew_address:1m;
limit_conn_zone $server_name zone=fedfew_all:1m;
server {{
    listen {plan.port} ssl;
    server_name {plan.host};
    ssl_certificate     {folder / "server.crt"};
    ssl_certificate_key {folder / "server.key"};
    ssl_protocols TLSv1.2 TLSv1.3;
    client_header_timeout 10s;
    client_body_timeout 30s;
    send_timeout 30s;
    client_header_buffer_size 4k;
    large_client_header_buffers 4 8k;
    client_max_body_size 1m;
    client_body_buffer_size 256k;
    limit_conn fedfew_address 256;
    limit_conn fedfew_all 4096;
    access_log off;
    proxy_ssl_trusted_certificate {folder / "ca.crt"};
    proxy_ssl_verify on;
    proxy_ssl_name localhost;
    proxy_http_version 1.1;
    proxy_read_timeout 300s;

    location ~ ^/v1/fleet/({"|".join(call for call in CALLS if call != "push-object")})$ {{
        limit_except POST {{ deny all; }}
        proxy_pass https://127.0.0.1:{port};
    }}
    location = /v1/fleet/push-object {{
        limit_except POST {{ deny all; }}
        client_max_body_size {OBJECT_LIMIT >> 20}m;
        proxy_pass https://127.0.0.1:{port};
    }}
    location = /fedfew {{
        default_type application/json;
        return 200 '{{{reported}}}';
    }}
    location / {{ return 403; }}
}}
"""


def systemd_server(plan: ServerPlan) -> str:
    """A unit that keeps the server running and continues the run after a reboot."""
    folder = plan.folder.absolute()
    return _unit(f"fedfew server of {plan.name}", ["deploy", "server", str(folder)], folder)


def systemd_client(folder: Path, data: Path | None, terms: SiteTerms) -> str:
    """A unit that keeps a site online, with the site's terms as options where they differ from the defaults."""
    home = folder.absolute()
    numbers = [(field.name, field.default) for field in fields(terms) if isinstance(field.default, float)]
    changed = [(name, value) for name, default in numbers if (value := getattr(terms, name)) != default]
    options = [word for name, value in changed for word in (f"--{name.replace('_', '-')}", f"{value:g}")]
    options += [word for name in terms.allow_code for word in ("--allow-code", name)]
    images = str((data or Path("DATA")).absolute())
    return _unit(f"fedfew site {home.name}", ["deploy", "client", str(home), "--data", images, *options], home)


def _word(text: str) -> str:
    """Quote a word of a unit's command line: blanks, quotes, % and $ have a meaning in systemd."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return plain if plain == text and not any(c.isspace() or c in "';" for c in text) else f'"{plain}"'


def _unit(title: str, words: list[str], folder: Path) -> str:
    command = " ".join(_word(word) for word in [str(Path(sys.executable).with_name("fedfew")), *words])
    home = str(folder).replace("%", "%%")
    return f"""[Unit]
Description={title}
After=network-online.target
Wants=network-online.target

[Service]
WorkingDirectory={home}
ExecStart={command}
Restart=always
RestartSec=5
RestartPreventExitStatus=0
KillMode=mixed
TimeoutStopSec=30
NoNewPrivileges=true
PrivateTmp=true
ProtectSystem=full

[Install]
WantedBy=multi-user.target
"""
