"""`python -m gpuwarden`, for where the script is not on the path."""

import sys

from gpuwarden.cli.main import main

sys.exit(main())
