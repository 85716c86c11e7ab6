"""`python -m dagfisher` is the program `dagfisher`."""

import sys

from .app.cli import main

sys.exit(main())
