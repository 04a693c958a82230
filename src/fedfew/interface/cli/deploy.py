"""Declares ``fedfew deploy``: options and help texts."""

from pathlib import Path

import click

from fedfew.interface.cli.declare import (
    ALLOW_CODE,
    ANYWAY,
    CONFIG,
    CONFIG_NAME,
    JSON,
    NEW_RUN,
    OVERRIDES,
    argument,
    command,
    flag,
    group,
    number,
    path,
    text,
)  # fmt: skip

BUNDLE = argument("bundle", "BUNDLE", "SITE.tar from `deploy init`, or its unpacked folder.")
NETWORK = argument("network", "[NETWORK]", "The folder from `deploy init`, or its server/.", default=Path())
STATE = path("--state", "DIR", "The site's folder (default: next to the bundle).")
DATA = path("--data", "PATH", "The site's images, texts, table or vectors; labels are never read.")
AMOUNT = click.FloatRange(0)
METRICS = number("--metrics", 0, 0, "Port on 127.0.0.1 for /healthz and /metrics; 0: none.", most=65535)
SYSTEMD = flag("--systemd", "Print a unit for systemd and exit.")

FINGERPRINT = text("--fingerprint", "HEX", "What the other side read to you; without it you are asked.", default="")

DOCTOR = group(
    "doctor",
    "Check the server or a site before a run.",
    command(
        "deploy:doctor_server",
        "Check the server of a network. Checks certificates, port, data, disk and versions, and takes a training step.",
        NETWORK, ALLOW_CODE, JSON, name="server",
    ),
    command(
        "deploy:doctor_client",
        "Check a site of a network. Checks connection, TLS, clock, versions, key, disk and images, and takes a "
        "training step.",
        BUNDLE, DATA, STATE, JSON, name="client",
    ),
)  # fmt: skip
DEPLOY = group(
    "deploy",
    "Train across real machines, connected by Flower.",
    command(
        "deploy:init",
        "Create a network of sites. Writes the server's folder with its certificates, and with --sites one key pair "
        "and one bundle for each of them; without, sites ask with `deploy join` and keep their keys.",
        argument("name", "NAME", "Folder of the new network."),
        text("--sites", "A,B,C", "Sites whose keys are made here, for a trial; new ones for a network there is.",
             default=""),
        text("--server", "HOST", "Name or address of the server.", default="127.0.0.1"),
        number("--port", 9092, 1, "Port under which sites reach the server.", most=65535),
        number("--bind", 0, 0, "Port it listens on, if --port is forwarded to another; 0: the same.", most=65535),
        text("--config", "PRESET|CONFIG.toml", "What to train.", default="quick", type=CONFIG_NAME),
        OVERRIDES,
        number("--days", 365, 1, "How long the certificates are valid."),
        flag("--force", "Replace the keys of an existing network."),
        JSON,
    ),
    command(
        "deploy:server",
        "Start the network's run, or continue it. Starts Flower's SuperLink on loopback and a TLS front for the sites.",
        NETWORK,
        text("--config", "PRESET|CONFIG.toml", "What to train.", default="", type=CONFIG_NAME),
        text("--sites", "A,B", "Sites that the run asks to take part (default: all).", default=""),
        OVERRIDES, NEW_RUN,
        flag("--serve", "Stay up and run the plans of the queue, see `deploy submit`."), METRICS,
        flag("--nginx", "Print a configuration for nginx and exit."),
        SYSTEMD, ANYWAY, ALLOW_CODE, JSON,
    ),
    command(
        "deploy:submit",
        "Put a plan into the queue of `deploy server --serve`. It is checked now, and run after those before it.",
        CONFIG, NETWORK,
        text("--name", "NAME", "Name of its run (default: the config's)."),
        text("--sites", "A,B", "Sites that the run asks to take part (default: all).", default=""),
        OVERRIDES, JSON,
    ),
    command(
        "deploy:client",
        "Keep a site online. Starts a process that holds the data, and Flower's SuperNode; reconnects by itself.",
        BUNDLE, DATA, STATE,
        text("--min-noise", "N", "Refuse runs with less noise (default: limits.toml of the site, or 0).", type=AMOUNT),
        text("--max-clip", "N", "Refuse runs with a larger clip; 0: any.", type=AMOUNT),
        text("--unit", "site|image", "What noise must hide: all images of the site (default), or each single one."),
        text("--max-epsilon", "N", "Refuse updates beyond this ε over all runs; 0: no limit.", type=AMOUNT),
        text("--delta", "N", "δ at which --max-epsilon holds (1e-5).", type=AMOUNT),
        ALLOW_CODE, METRICS, SYSTEMD,
    ),
    command(
        "deploy:join",
        "Join a network as a site. Makes the site's key and a request for the server; later, with the file that the "
        "server returned, completes the folder.",
        argument("folder", "FOLDER", "The site's folder; its name is the site's, unless --name is."),
        argument("admission", "[ADMISSION]", "SITE.admission from `deploy admit` or `deploy renew`.", required=False),
        text("--name", "NAME", "Name of the site.", default=""), FINGERPRINT, JSON,
    ),
    command(
        "deploy:admit",
        "Admit a site to the network. Checks the request's signature and writes what the site needs; no secret is in "
        "it.",
        argument("request", "REQUEST", "FOLDER.request from `deploy join`."), NETWORK, FINGERPRINT, JSON,
    ),
    command(
        "deploy:approve",
        "Show what runs ask of a site, or approve one. Shows method, model, rounds, what will leave, ε and the hash of "
        "each plan.",
        argument("folder", "FOLDER", "The site's folder."),
        argument("plan", "[PLAN]", "Hash of a plan, or its beginning.", str, required=False),
        flag("--refuse", "Refuse the plan."), JSON,
    ),
    command(
        "deploy:pause",
        "Let a site answer nothing for a while. It stays online, and runs go on without it.",
        argument("folder", "FOLDER", "The site's folder."), flag("--end", "End the pause."),
    ),
    command(
        "deploy:sites",
        "List the sites of a network. Shows state, when they were last seen, fingerprints, and when certificates end.",
        NETWORK, JSON,
    ),
    command(
        "deploy:revoke",
        "Shut a site out of the network. A running server takes that up at once.",
        argument("site", "SITE", "Name of the site.", str), NETWORK,
    ),
    command(
        "deploy:forget",
        "Make a run's model again without one site's sums. Writes model and evaluation next to the run; only with "
        "fedmoments, which keeps what each site sent.",
        argument("site", "SITE", "Name of the site.", str), NETWORK,
        path("--run", "DIR", "The run (default: the network's own)."), ALLOW_CODE, JSON,
    ),
    command(
        "deploy:renew",
        "Renew the certificates of authority and server. Keys and sites stay; a running server takes them up.",
        NETWORK, number("--days", 365, 1, "How long the certificates are valid."), JSON,
    ),
    command(
        "deploy:dossier",
        "Write a document about the network for a board. HTML, and PDF with --pdf if a browser can print: purpose, "
        "parties, data flows, what leaves, safeguards, keys, retention, models, software, open risks.",
        NETWORK,
        path("--site", "FOLDER", "A site's folder, for its limits and ledger; may be repeated.", multiple=True),
        text("--purpose", "TEXT", "What the network is for.", default=""),
        path("--out", "FILE", "The document (default: dossier.html in the network's folder)."),
        flag("--pdf", "Also print it as PDF, by Chromium or Chrome."),
    ),
    command(
        "deploy:local",
        "Try a network on this machine, with TLS and keys. The result is the same as that of `fedfew run`.",
        CONFIG, number("--sites", 2, 1, "How many sites share the clients."), OVERRIDES, NEW_RUN, JSON,
    ),
    DOCTOR,
)  # fmt: skip
LEDGER = group(
    "ledger",
    "Read a site's ledger: what came in, and what left.",
    command(
        "deploy:ledger_verify",
        "Check that no line was changed, removed or added. Then summarizes what came in and what left, by run.",
        argument("folder", "FOLDER", "A site's folder, or its ledger.jsonl."),
        text("--noted", "HASH", "A hash that an earlier check printed: it must still be in the chain.", default=""),
        path("--html", "FILE", "Also write the summary as a page."),
        JSON, name="verify",
    ),
)  # fmt: skip
