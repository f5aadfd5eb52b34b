"""`python -m turnwise`, for where the package lies on the path but its command is not installed."""

import sys

from turnwise.cli.main import main

sys.exit(main())
