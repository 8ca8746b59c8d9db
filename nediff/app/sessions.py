"""What belongs to one visitor: a folder, the image at hand, and the work under way."""

from __future__ import annotations

import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nediff.app.opening import Opened
from nediff.app.restoring import Result
from nediff.app.work import Work

PATIENCE = 15 * 60.0
"""Seconds without an event after which a page that was left does not come back."""
SWEEP = 60.0
"""Seconds between two looks for such pages."""


class Session:
    """Of one open page. Its folder has a name nobody can guess, for the browser is told it."""

    def __init__(self, root: Path) -> None:
        self.folder = root / secrets.token_hex(16)
        self.folder.mkdir(mode=0o700)
        self.file: Path | None = None
        """A copy of the uploaded file, in the folder."""
        self.opened: Opened | None = None
        self.told: float | None = None
        """The σ that the page wrote into its field when the image arrived."""
        self.too_narrow = False
        """Whether its error bars will be: its noise is correlated, and the model's is not."""
        self.shown: dict[str, Any] | None = None
        """What the viewer was told of the newest result."""
        self.uploads: set[Path] = set()
        """The folders the server put uploaded files in; equal files of two visitors share one."""
        self.result: Result | None = None
        self.work: Work[Any] | None = None
        self._made = 0
        self._lock = threading.Lock()
        """Events of one page run in several threads: a restore, and what is clicked meanwhile."""

    def new_folder(self) -> Path:
        """For the files of one result. Earlier ones are kept for a while: the browser may be
        loading them."""
        with self._lock:
            self._made += 1
            for old in range(1, self._made - 2):
                shutil.rmtree(self.folder / str(old), ignore_errors=True)
            folder = self.folder / str(self._made)
            folder.mkdir()
            return folder

    def keep(self, upload: Path) -> Path:
        """Copy an uploaded file here, and remember to remove the upload."""
        place = self.folder / "upload"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        self.file = Path(shutil.copy(upload, place / upload.name))
        self.uploads.add(upload.parent)
        return self.file

    def cancel(self) -> None:
        """Whatever is under way."""
        if self.work is not None:
            self.work.cancel()

    def drop(self) -> None:
        """Forget the image and its result, and stop what is made of it."""
        with self._lock:
            self.cancel()
            self.opened = self.result = None

    def begin(self, opened: Opened, work: Work[Any]) -> None:
        """The work on an image is under way, instead of any before."""
        with self._lock:
            self.cancel()
            self.work = work
            if self.opened is opened:
                self.result = None

    def is_at(self, opened: Opened, work: Work[Any]) -> bool:
        """Whether that image is still the one at hand, and that work the one on it."""
        return self.opened is opened and self.work is work

    def finish(self, result: Result, work: Work[Any]) -> bool:
        """Keep a result; False, and nothing is kept, if its image is not at hand any more."""
        with self._lock:
            if not self.is_at(result.opened, work):
                return False
            self.result = result
            return True

    def close(self) -> None:
        """Stop the work and leave nothing behind."""
        self.cancel()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.opened = self.result = None


class Sessions:
    """All visitors, by the name their page has; folders are made in ``root``.

    A connection that drops (a locked phone, a computer asleep, another Wi-Fi) looks like a page
    that was closed, but the page may come back and go on. So what was left is kept for a while.
    """

    def __init__(self, root: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.root, self._clock = root, clock
        self._lock = threading.Lock()
        self._known: dict[str, Session] = {}
        self._last: dict[str, float] = {}
        """When a page last asked for its session."""
        self._left: set[str] = set()
        """Pages whose connection has dropped; nobody tells when these are closed."""

    def of(self, name: str | None) -> Session:
        """That of a page, new if need be; it will be kept for a while."""
        key = name or ""
        with self._lock:
            self._last[key] = self._clock()
            if key not in self._known:
                self._known[key] = Session(self.root)
            return self._known[key]

    def leave(self, name: str | None) -> None:
        """The page was closed, or its connection dropped."""
        with self._lock:
            self._left.add(name or "")

    def sweep(self) -> None:
        """Close what was left and has not been heard of since."""
        with self._lock:
            late = self._clock() - PATIENCE
            names = [name for name in self._known if name in self._left and self._last[name] < late]
        for name in names:
            self.close(name)

    @contextmanager
    def swept(self, seconds: float = SWEEP) -> Iterator[None]:
        """Sweep every so many seconds."""
        over = threading.Event()

        def go_on() -> None:
            while not over.wait(seconds):
                self.sweep()

        thread = threading.Thread(target=go_on, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def close(self, name: str | None) -> None:
        """Remove the session of a page, and its files."""
        with self._lock:
            session = self._known.pop(name or "", None)
            self._last.pop(name or "", None)
            others = {folder for left in self._known.values() for folder in left.uploads}
        if session is not None:
            session.close()
            for folder in session.uploads - others:
                shutil.rmtree(folder, ignore_errors=True)

    def close_all(self) -> None:
        """The app ends."""
        with self._lock:
            names = list(self._known)
        for name in names:
            self.close(name)

    def __len__(self) -> int:
        return len(self._known)
