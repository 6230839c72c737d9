"""`python -m ortdeploy`."""

import sys

from ortdeploy.cli import main

if __name__ == "__main__":
    sys.exit(main())
