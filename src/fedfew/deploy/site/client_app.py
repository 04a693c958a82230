"""The ClientApp: forwards a message to the warm site process and returns its reply. Flower starts it per message.

It imports neither torch nor data, which would cost seconds each time; the site process has both loaded.
"""

import os
import traceback
from time import monotonic, sleep

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedfew.deploy.messages.frames import LIMIT, Arrays, FrameError, connect, encode, receive, send
from fedfew.deploy.messages.records import from_content, to_content

SITE = "FEDFEW_SITE"
"""Environment variable with the path of the site's socket; `fedfew deploy client` sets it."""
PATIENCE = 120.0
"""Seconds to wait for a site that is restarting."""

client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """The warm site's answer, or an error code. No exception may escape: Flower would send its text to the server."""
    try:
        content = to_content(*ask_site(*from_content(message.content, LIMIT)))
    except Exception:
        traceback.print_exc()  # into the log of the site's SuperNode
        content = to_content('{"code": "E409"}', {})
    return Message(content, reply_to=message)


def ask_site(head: str, arrays: Arrays, tries: int = 3, patience: float = PATIENCE) -> tuple[str, dict[str, bytes]]:
    """The site's answer; a site that dies is restarted, so this waits for it and asks again."""
    deadline = monotonic() + patience
    while True:
        try:
            with connect(os.environ.get(SITE, "")) as end:
                tries -= 1
                send(end, encode(head, arrays))
                return receive(end)
        except FrameError:
            if tries <= 0 or monotonic() > deadline:
                raise
            sleep(0.5)
