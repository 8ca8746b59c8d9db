"""The one exception that is meant for the user's eyes."""

from __future__ import annotations


class NediffError(Exception):
    """Bad input, said in one sentence: what was wrong, where, and what to do.

    The command line prints the message without a traceback and exits with code 2.
    """
