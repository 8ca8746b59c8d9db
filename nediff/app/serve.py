"""Start the server; whatever happens, leave no files behind."""

from __future__ import annotations

import errno
import ipaddress
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nediff.app.models import open_model
from nediff.app.sessions import Sessions
from nediff.app.training import Trainings
from nediff.errors import NediffError

MOST_MEGABYTES = 256
"""Of an upload."""


def is_local(host: str) -> bool:
    """Whether only this computer can reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check(host: str, port: int | None) -> None:
    """Refuse a port that is taken, and an address that is none of this computer's, at once.

    Gradio would try 100 ports.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as door:
            door.bind(address)
    except (OSError, UnicodeError) as error:
        raise NediffError(
            f"The page cannot be served at '{host}': {error}. Leave out --host for this computer "
            "alone, or give 0.0.0.0 for all that can reach it."
        ) from error
    if port is None:
        return
    try:
        with socket.socket(family, kind) as door:
            # as a server does: one that was closed a moment ago does not count
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            door.bind((address[0], port, *address[2:]))
    except OSError as error:
        how = (
            "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
        )
        raise NediffError(f"Port {port} {how}; leave out --port for a free one.") from error


def _only_named(host: str) -> list[Any]:
    """Answer only who calls this computer by a name of its own.

    Any website can give a name of its own the address 127.0.0.1 (DNS rebinding), and would then
    be let into the page, and could train, by the browser of who visits it. The browser tells the
    name it was asked for, whatever the port.
    """
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    # "[" is what older versions of Starlette read of [::1]:7860; a name cannot begin with it
    names = ["localhost", "127.0.0.1", "[::1]", "::1", "[", host]
    return [Middleware(TrustedHostMiddleware, allowed_hosts=names, www_redirect=False)]


@contextmanager
def serving(
    run: Path | None, host: str = "127.0.0.1", port: int | None = None, browser: bool = False
) -> Iterator[str]:
    """The address of the page, for as long as it is there.

    Visitors from other computers see no training page: it reads and writes folders of this one.
    """
    _check(host, port)
    model = open_model(run)
    root = Path(tempfile.mkdtemp(prefix="nediff-app-")).resolve()
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    os.environ.update(_ENVIRONMENT | {"GRADIO_TEMP_DIR": str(root)})
    local = is_local(host)
    sessions, trainings = Sessions(root), Trainings() if local else None
    page: Any = None
    try:
        from nediff.app.look import CSS, HEAD, theme
        from nediff.app.page import build_page

        page = build_page(model, sessions, trainings, local)
        page.queue(default_concurrency_limit=4, api_open=False)
        try:
            _, address, _ = page.launch(
                server_name=f"[{host}]" if ":" in host else host,  # as in an address of the web
                server_port=port,
                inbrowser=browser,
                prevent_thread_lock=True,
                quiet=True,
                share=False,
                ssr_mode=False,
                max_file_size=f"{MOST_MEGABYTES}mb",
                footer_links=[],
                enable_monitoring=False,
                run_history=False,
                theme=theme(),
                css=CSS,
                head=HEAD,
                app_kwargs={"middleware": _only_named(host)} if local else None,
            )
        except OSError as error:
            raise NediffError(f"The page cannot be served at {host}: {error}") from error
        with sessions.swept():
            yield address
    finally:
        if page is not None:
            page.close(verbose=False)
        sessions.close_all()
        if trainings is not None:
            trainings.close()
        shutil.rmtree(root, ignore_errors=True)
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


_ENVIRONMENT = {
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "GRADIO_TEMP_DIR": "",
}


def serve(run: Path | None, host: str, port: int | None, browser: bool, told: Any) -> None:
    """Until a signal ends it; ``told`` is called with the address."""
    with serving(run, host, port, browser) as address:
        told(address)
        threading.Event().wait()
