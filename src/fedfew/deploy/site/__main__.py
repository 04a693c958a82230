"""A site's warm process: loads the images once, builds what a server's config asks for, and serves the ClientApp.

Started as ``python -m fedfew.deploy.site ORDER``; it never sees a label, because there is no way to name them.
"""

import logging
import socket
import sys
from pathlib import Path

import torch

from fedfew.core.environment import keep_freed_memory
from fedfew.deploy.messages.frames import LIMIT
from fedfew.deploy.site.budget import PrivacyBudget
from fedfew.deploy.site.build import real_site, trial_site
from fedfew.deploy.site.processes import Order
from fedfew.deploy.site.warm_site import WarmSite, serve


def main(order: Order) -> None:
    """Listen and serve until the process guard ends this process."""
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("fedfew").setLevel(logging.DEBUG)  # training errors are logged here and nowhere else
    torch.set_num_threads(1)
    keep_freed_memory()
    state, terms, number = Path(order.state), order.terms, order.number
    state.mkdir(parents=True, exist_ok=True)
    if not order.data:
        build = trial_site(number, order.sites, terms.allow_code)
        budget = None
    else:
        build = real_site(number, Path(order.data), terms.min_noise, terms.max_clip, terms.allow_code)
        budget = PrivacyBudget(state / "privacy.json", terms.max_epsilon, terms.delta)
    site = WarmSite(number, build, state, Path(order.memory), budget)
    Path(order.socket).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(order.socket)
    listener.listen(8)
    serve(site, listener, LIMIT)


if __name__ == "__main__":
    main(Order.parsed(sys.argv[1]))
