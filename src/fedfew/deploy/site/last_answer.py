"""The last noisy answer of a site, on disk: a message that comes again gets the same answer, also after a restart.

Fresh noise on the same change would let a server average the noise away, and would have to be charged again.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedfew.core.storage import write_atomically
from fedfew.deploy.site.answers import Answers


@dataclass(frozen=True)
class LastAnswer:
    """answer.safetensors in the site's folder."""

    path: Path

    def read(self, message: str) -> Answers | None:
        """The answer to a message, identified by a hash of it and of the site's images; None for any other."""
        try:
            with safe_open(self.path, framework="pt") as file:
                about = json.loads(file.metadata()["fedfew"])
                if about["message"] != message:
                    return None
                replies: dict[str, dict[str, Tensor]] = {}
                for key in file.keys():  # noqa: SIM118 - not a dict
                    client, _, name = key.partition("/")
                    replies.setdefault(client, {})[name] = file.get_tensor(key)
                return about["answers"], replies
        except (OSError, ValueError, KeyError, TypeError, SafetensorError):  # none yet, or damaged: charged again
            return None

    def write(self, message: str, answers: list[dict[str, Any]], replies: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Keep an answer in place of the one before."""
        tensors = {f"{client}/{name}": t.contiguous() for client, reply in replies.items() for name, t in reply.items()}
        about = json.dumps({"message": message, "answers": answers})
        write_atomically(self.path, save(tensors, metadata={"fedfew": about}))
