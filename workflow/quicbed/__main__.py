"""`python -m quicbed`."""

import sys

from quicbed.cli.commands import main

sys.exit(main())
