"""A pool's worker process, started as ``python -m fedfew.config.worker FD…`` with its channel, arenas and lifeline.

The lifeline is watched before torch is imported: that takes seconds, in which the pool may end.
"""

import sys

from fedfew.runtime.channel import end_with_parent

if __name__ == "__main__":
    *files, lifeline = (int(argument) for argument in sys.argv[1:])
    end_with_parent(lifeline)
    from fedfew.config.pool_site import work

    work(*files)
