"""What belongs to one visitor: a folder, the image at hand, and the work under way."""

from __future__ import annotations

import secrets
import shutil
import threading
from pathlib import Path
from typing import Any

from nediff.app.opening import Opened
from nediff.app.restoring import Result
from nediff.app.work import Work


class Session:
    """Of one open page. Its folder has a name nobody can guess, for the browser is told it."""

    def __init__(self, root: Path) -> None:
        self.folder = root / secrets.token_hex(16)
        self.folder.mkdir(mode=0o700)
        self.file: Path | None = None
        """A copy of the uploaded file, in the folder."""
        self.opened: Opened | None = None
        self.uploads: set[Path] = set()
        """The folders the server put uploaded files in; equal files of two visitors share one."""
        self.result: Result | None = None
        self.work: Work[Any] | None = None
        self._made = 0

    def new_folder(self) -> Path:
        """For the files of one result. Earlier ones are kept for a while: the browser may be
        loading them."""
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

    def close(self) -> None:
        """Stop the work and leave nothing behind."""
        self.cancel()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.opened = self.result = None


class Sessions:
    """All visitors, by the name their page has; folders are made in ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock = threading.Lock()
        self._known: dict[str, Session] = {}

    def of(self, name: str | None) -> Session:
        """That of a page, new if need be."""
        key = name or ""
        with self._lock:
            if key not in self._known:
                self._known[key] = Session(self.root)
            return self._known[key]

    def close(self, name: str | None) -> None:
        """The page was left."""
        with self._lock:
            session = self._known.pop(name or "", None)
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
