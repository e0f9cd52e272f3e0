"""``python -m opsin``."""

import sys

from opsin.cli.main import main

sys.exit(main())
