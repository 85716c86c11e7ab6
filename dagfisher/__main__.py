"""`python -m dagfisher` is the program `dagfisher`."""

import sys

from .cli import main

sys.exit(main())
