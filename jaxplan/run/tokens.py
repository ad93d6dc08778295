"""Token ids to train on: those of a file, memory-mapped, or made up. No JAX here.

A batch is windows of `seq + 1` consecutive ids: the first `seq` are the tokens, the last `seq` what comes next.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxplan.errors import InputError

CHECKED_AT_ONCE = 2**24         # ids
EXPECTED = "a .npy or .npz file with one array of whole numbers"


@dataclass(frozen=True, eq=False)
class Tokens:
    """A stream of token ids, read again from its start where it ends.

    Attributes:
        ids: one-dimensional, of whole numbers.
        name: where it comes from, for people.
    """

    ids: np.ndarray
    name: str

    def windows(self, first: int, count: int, seq: int) -> np.ndarray:
        """Windows `first` to `first + count`, (count, seq + 1) int32; each begins where the one before ends."""
        whole = (len(self.ids) - 1) // seq
        starts = (np.arange(first, first + count) % whole) * seq
        return np.stack([self.ids[start : start + seq + 1] for start in starts]).astype(np.int32)

    def check(self, windows: int, seq: int, vocab: int) -> str:
        """Checks what so many windows read; returns what is to be said about it, or an empty text.

        Raises:
            InputError: there is not one whole window, or an id is not of the vocabulary.
        """
        if len(self.ids) < seq + 1:
            raise InputError(
                f"{self.name} has {len(self.ids):,} tokens", f"at least {seq + 1:,}, a sequence and what comes next"
            )
        whole = (len(self.ids) - 1) // seq
        end = min(windows, whole) * seq + 1
        for start in range(0, end, CHECKED_AT_ONCE):
            part = self.ids[start : min(start + CHECKED_AT_ONCE, end)]
            wrong = (part < 0) | (part >= vocab)
            if wrong.any():
                place = int(np.argmax(wrong))
                raise InputError(
                    f"{self.name}: token {int(part[place])} at position {start + place:,}",
                    f"ids from 0 to {vocab - 1:,}, the model's vocabulary",
                    "the tokenizer that belongs to the model",
                )
        if windows <= whole:
            return ""
        return f"{self.name} has {whole:,} sequences of {seq:,} tokens, the steps read {windows:,}: it is read again"


def open_tokens(path: Path) -> Tokens:
    """The token ids of a file; of an .npy they stay on the disk until they are read.

    Raises:
        InputError: no such file, no array of whole numbers in it, or several that none of is called `tokens`.
    """
    try:
        with path.open("rb") as file:
            archive = file.read(4) == b"PK\x03\x04"
        loaded = np.load(path, mmap_mode=None if archive else "r", allow_pickle=False)
        ids = _chosen(path, loaded) if archive else loaded
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0] or "it is empty"
        raise InputError(f"cannot read tokens from {path}: {reason}", EXPECTED) from error
    if not isinstance(ids, np.ndarray) or not np.issubdtype(ids.dtype, np.integer) or ids.ndim == 0:
        what = f"{ids.dtype} {list(ids.shape)}" if isinstance(ids, np.ndarray) else type(ids).__name__
        raise InputError(f"{path} holds {what}", EXPECTED)
    return Tokens(ids.reshape(-1), path.name)


def _chosen(path: Path, archive: np.lib.npyio.NpzFile) -> np.ndarray:
    names = archive.files
    if len(names) == 1 or "tokens" in names:
        return archive["tokens" if "tokens" in names else names[0]]
    raise InputError(f"{path} holds {len(names)} arrays: {', '.join(names[:5])}", "one, or one called tokens")


def made_up(vocab: int, seq: int, windows: int, seed: int = 0) -> Tokens:
    """As many uniformly random ids as so many windows read; the same ones for the same arguments."""
    kind = np.uint16 if vocab <= 2**16 else np.int32
    return Tokens(np.random.default_rng(seed).integers(0, vocab, windows * seq + 1, dtype=kind), "made-up tokens")
