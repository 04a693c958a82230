"""A site's warm process: loads the images once, builds what a server's config asks for, and serves the ClientApp.

Started as ``python -m fedfew.deploy.site``; it never sees a label, because it has no option for them.
"""

import argparse
import logging
import socket
import sys
from pathlib import Path

import torch

from fedfew.core.memory import keep_freed_memory
from fedfew.deploy.messages.frames import LIMIT
from fedfew.deploy.site.budget import PrivacyBudget
from fedfew.deploy.site.build import real_site, trial_site
from fedfew.deploy.site.warm_site import WarmSite, serve


def main(arguments: list[str]) -> None:
    """Listen and serve until the process guard ends this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--sites", type=int, required=True)
    parser.add_argument("--data", type=Path, help="without it: a trial, with images from the config's partition")
    parser.add_argument("--memory", type=Path)
    parser.add_argument("--min-noise", type=float, default=0.0)
    parser.add_argument("--max-clip", type=float, default=0.0)
    parser.add_argument("--max-epsilon", type=float, default=0.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--allow-code", action="append", default=[])
    given = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("fedfew").setLevel(logging.DEBUG)  # training errors are logged here and nowhere else
    torch.set_num_threads(1)
    keep_freed_memory()
    given.state.mkdir(parents=True, exist_ok=True)
    if given.data is None:
        build = trial_site(given.number, given.sites, given.allow_code)
        site = WarmSite(given.number, build, given.state, memory=given.memory)
    else:
        build = real_site(given.number, given.data, given.min_noise, given.max_clip, given.allow_code)
        budget = PrivacyBudget(given.state / "privacy.json", given.max_epsilon, given.delta)
        site = WarmSite(given.number, build, given.state, budget=budget)
    given.socket.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(given.socket))
    listener.listen(8)
    print("ready", flush=True)
    serve(site, listener, LIMIT)


if __name__ == "__main__":
    main(sys.argv[1:])
