"""`nediff app`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from nediff.cli.console import say
from nediff.cli.signals import Interrupted
from nediff.errors import NediffError


def run_app(run: Path | None, host: str, port: int | None, browser: bool) -> None:
    """Serve the page until Ctrl-C."""
    if importlib.util.find_spec("gradio") is None:
        raise NediffError("The page needs Gradio; install it with: pip install 'nediff[app]'")
    from nediff.app.serve import is_local, serve

    if not is_local(host):
        say(f"Careful: at {host} others can reach the page; they can restore, and not train.")

    def told(address: str) -> None:
        say(f"The page is at {address} (Ctrl-C ends it and removes what it kept)")

    try:
        serve(run, host, port, browser, told)
    except Interrupted:  # the way to end it
        say("closed; nothing was left behind")
