"""`python -m treadle`, for environments whose scripts are not on the path."""

import sys

from treadle.cli import main

if __name__ == "__main__":
    sys.exit(main())
