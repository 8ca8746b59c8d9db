"""`nediff app`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from nediff.cli.console import refuse_json_folder, results, say, write_json
from nediff.cli.signals import Interrupted
from nediff.errors import NediffError


def run_app(
    run: Path | None, host: str, port: int | None, browser: bool, json_file: Path | None
) -> None:
    """Serve the page until Ctrl-C; its address is the result."""
    refuse_json_folder(json_file)
    if importlib.util.find_spec("gradio") is None:
        raise NediffError("The page needs Gradio; install it with: pip install 'nediff[app]'")
    from nediff.app.serve import is_local, serve

    if not is_local(host):
        say(f"Careful: at {host} others can reach the page; they can restore, and not train.")

    def told(address: str) -> None:
        write_json({"address": address}, json_file)
        say(f"The page is at {address} (Ctrl-C ends it and removes what it kept)", results)
        sys.stdout.flush()  # a program that waits for it reads a pipe

    try:
        serve(run, host, port, browser, told)
    except Interrupted:  # the way to end it
        say("closed; nothing was left behind")
