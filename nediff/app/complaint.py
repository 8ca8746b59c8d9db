"""What the page says when something does not work; nothing may leave it stuck."""

from __future__ import annotations

import logging

from nediff.errors import NediffError

LOG = logging.getLogger("nediff.app")


def complaint(error: Exception) -> str:
    """A sentence for who visits; what nobody expected is also written to the terminal.

    Torch has its own error for no memory. Paths of this computer are not told.
    """
    if isinstance(error, NediffError):
        return str(error)
    if isinstance(error, MemoryError) or "memory" in str(error):
        return "There is not enough memory for this; try a smaller image or fewer samples."
    LOG.error("The page could not do what was asked for.", exc_info=error)
    if isinstance(error, OSError):
        return f"A file could not be read or written: {error.strerror or type(error).__name__}."
    return f"That is a mistake of ours ({type(error).__name__}); the terminal of the app says more."
