"""`python -m dagfisher` is the program `dagfisher`."""

from .app.cli import run

run()
