"""`python -m fumehood`."""

import sys

from .cli.main import main

sys.exit(main())
