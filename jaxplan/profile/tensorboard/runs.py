"""The index of run folders below a log directory: which there are and what each holds, by names alone.

A run folder is a folder with at least one document that jaxplan writes. No file is opened here, so that thousands of
runs cost a walk over folders. What is served later is looked up in this index: a request never makes up a path.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ONE_PLAN = "plan|explain|timeline|check|run|goodput"    # kinds of documents of which a run has one for each plan
DOCUMENT = re.compile(rf"(search|candidates|compare|choice|({ONE_PLAN})(-[1-9][0-9]*)?)\.json")
DEEPEST = 6             # folders below the log directory (chosen: experiments/team/project/runs/stamp is 5)
MOST_FOLDERS = 100_000  # folders that one walk looks at (chosen: some seconds on a local disk)
PROFILES = ("plugins", "profile")


@dataclass(frozen=True)
class Document:
    """One file as it was when it was listed.

    Attributes:
        modified_s: seconds since the epoch.
    """

    path: Path
    modified_s: float
    nbytes: int

    @property
    def version(self) -> str:
        """Changes when the file is written again."""
        return f"{self.modified_s:.6f}-{self.nbytes}"


@dataclass(frozen=True)
class Run:
    """One run folder.

    Attributes:
        name: its path below the log directory, with slashes; `.` is the log directory itself: TensorBoard's run name.
        documents: by file name.
        sessions: profiles of TensorBoard's Profile tab that it holds.
    """

    name: str
    documents: Mapping[str, Document]
    sessions: tuple[str, ...] = ()

    @property
    def modified_s(self) -> float:
        """When the newest document was written."""
        return max(document.modified_s for document in self.documents.values())


@dataclass(frozen=True)
class Listing:
    """All runs, the newest first.

    Attributes:
        whole: whether every folder was looked at.
    """

    runs: tuple[Run, ...] = ()
    whole: bool = True


@dataclass
class Runs:
    """The runs below one log directory, listed again when somebody asks and the listing has aged.

    TensorBoard asks from several threads: one of them walks, the others get the listing that was there before.
    """

    folder: Path
    _listing: Listing | None = None
    _stale_at_s: float = 0.0
    _any: bool = False
    _walking: threading.Lock = field(default_factory=threading.Lock)

    def listing(self) -> Listing:
        """The runs, as of some seconds ago at most, or as of ten times as long as one walk takes."""
        if self._listing is not None and time.monotonic() < self._stale_at_s:
            return self._listing
        if not self._walking.acquire(blocking=self._listing is None):
            return self._listing or Listing()
        try:
            if self._listing is None or time.monotonic() >= self._stale_at_s:
                self._listing = self._walk()
            return self._listing
        finally:
            self._walking.release()

    def any(self) -> bool:
        """Whether there is, or was, a run. Asked often: the first one found ends this walk and all later ones."""
        if not self._any and (self._listing is None or time.monotonic() >= self._stale_at_s):
            started = time.monotonic()
            self._any = next(_runs(self.folder), None) is not None
            if not self._any:
                self._listing, self._stale_at_s = Listing(), _stale_at_s(started)
        return self._any

    def document(self, run: str, name: str) -> Document | None:
        """A document as it is now; none where the listing has no such run or the run no such document."""
        found = self.run(run)
        listed = found.documents.get(name) if found else None
        if listed is None or not listed.path.resolve().is_relative_to(self.folder.resolve()):
            return None     # a folder on the way has become a link since
        return _document(listed.path)

    def run(self, name: str) -> Run | None:
        """The run of that name."""
        return next((run for run in self.listing().runs if run.name == name), None)

    def _walk(self) -> Listing:
        started = time.monotonic()
        budget = [MOST_FOLDERS]
        runs = sorted(_runs(self.folder, budget), key=lambda run: (-run.modified_s, run.name))
        self._stale_at_s, self._any = _stale_at_s(started), bool(runs) or self._any
        return Listing(tuple(runs), whole=budget[0] > 0)


def _stale_at_s(started_s: float) -> float:
    """When a listing has aged whose walk began then: walks take a tenth of the time at most, and a second is young."""
    now = time.monotonic()
    return now + max(1.0, 10 * (now - started_s))


def _runs(folder: Path, budget: list[int] | None = None) -> Iterator[Run]:
    """Every run folder below `folder`; symbolic links are not followed, so that nothing outside is found."""
    budget = budget or [MOST_FOLDERS]
    pending = [(str(folder), 0)]
    while pending and budget[0] > 0:
        path, depth = pending.pop()
        budget[0] -= 1
        documents, below = _look(path)
        if documents:
            name = os.path.relpath(path, folder).replace(os.sep, "/")
            yield Run(name, documents, _sessions(path))
        if depth < DEEPEST:
            pending += [(child, depth + 1) for child in below]


def _look(path: str) -> tuple[dict[str, Document], list[str]]:
    """The documents of a folder and the folders below it; nothing where it cannot be read or vanishes meanwhile."""
    documents: dict[str, Document] = {}
    below = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != PROFILES[0] and not entry.name.startswith("."):
                        below.append(entry.path)
                elif DOCUMENT.fullmatch(entry.name):
                    document = _document(Path(entry.path))
                    if document:
                        documents[entry.name] = document
    except OSError:
        return {}, []
    return documents, below


def _document(path: Path) -> Document | None:
    """The file as it is now; none where it is gone, or is a link or anything else that is no plain file."""
    try:
        if path.is_symlink() or not path.is_file():
            return None
        found = path.stat()
    except OSError:
        return None
    return Document(path, found.st_mtime, found.st_size)


def _sessions(path: str) -> tuple[str, ...]:
    """Names of the profile sessions of a run folder."""
    folder = Path(path, *PROFILES)
    try:
        return tuple(sorted({found.parent.name for found in folder.glob("*/*.xplane.pb")}))
    except OSError:
        return ()
