"""`python -m nediff`."""

from nediff.cli.main import main

main()
