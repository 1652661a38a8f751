"""`python -m punctual` is the command `punctual`."""

import sys

from punctual.cli import main

if __name__ == "__main__":
    sys.exit(main())
