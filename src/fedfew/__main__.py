"""``python -m fedfew``: the same as the command ``fedfew``."""

from fedfew.interface.cli import main

if __name__ == "__main__":
    main()
