"""Documents as they travel to the browser: compressed once, kept while the file stays the same, never parsed here."""

from __future__ import annotations

import threading
import zlib
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from jaxplan.errors import InputError
from jaxplan.profile.tensorboard.runs import Document

MOST_BYTES = 256 * 2**20    # of a document (chosen: a browser's parser takes some seconds for as much)
KEPT_BYTES = 64 * 2**20     # of compressed documents in memory (chosen: little beside what TensorBoard itself takes)
CHUNK_BYTES = 2**20
GZIP = 16 + zlib.MAX_WBITS  # zlib's word for gzip's header
FASTEST = 1                 # compression level: half a second for 100 MB; the connection is local most of the time


@dataclass
class Documents:
    """Compressed documents, the last used last."""

    _kept: OrderedDict[tuple[Path, str], bytes] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def compressed(self, document: Document) -> bytes:
        """The file, gzip-compressed.

        Raises:
            InputError: too large for a browser.
            OSError: gone, or not readable.
        """
        if document.nbytes > MOST_BYTES:
            raise InputError(
                f"{document.path.name} has {document.nbytes / 2**20:.0f} MiB",
                f"at most {MOST_BYTES // 2**20} MiB, which a browser can hold",
                "the command line reads it",
            )
        key = (document.path, document.version)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        body = _compress(document.path)
        with self._lock:
            for other in [kept for kept in self._kept if kept[0] == document.path]:
                del self._kept[other]
            self._kept[key] = body
            while sum(map(len, self._kept.values())) > KEPT_BYTES and len(self._kept) > 1:
                self._kept.popitem(last=False)
        return body


def _compress(path: Path) -> bytes:
    """The file through gzip, piece by piece: a large one never lies in memory as a whole."""
    packer = zlib.compressobj(FASTEST, zlib.DEFLATED, GZIP)
    with path.open("rb") as file:
        pieces = [packer.compress(piece) for piece in iter(lambda: file.read(CHUNK_BYTES), b"")]
    return b"".join([*pieces, packer.flush()])
