"""The ClientApp: hands a message to the warm site process and its reply back. Flower starts it anew for every message.

It imports neither torch nor data, which would cost seconds each time; the site process has both loaded.
"""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedfew.runtime.flower_frames import connect, receive, send
from fedfew.runtime.flower_records import from_content, to_content

SITE = "FEDFEW_SITE"
"""Environment variable with the path of the site's socket; `fedfew deploy client` sets it."""
LIMIT = 4 << 30

client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train at the warm site."""
    return _pass_on(message)


@client_app.query()
def query(message: Message, context: Context) -> Message:
    """Ask the site who it is."""
    return _pass_on(message)


def _pass_on(message: Message) -> Message:
    head, parts = from_content(message.content, LIMIT)
    with connect(SITE) as end:
        send(end, head, parts)
        head, answer = receive(end, LIMIT)
    return Message(to_content(head, answer), reply_to=message)
