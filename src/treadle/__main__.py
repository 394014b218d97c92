"""`python -m treadle`, for environments whose scripts are not on the path."""

import sys

from treadle.cli import main

sys.exit(main())
