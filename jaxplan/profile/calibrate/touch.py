"""What a byte costs that a process takes anew from the system, touches, and gives back. No JAX here."""

from __future__ import annotations

import mmap
import threading
import time

import numpy as np

BLOCK_BYTES = 2**24
TRIES = 4


def first_touch_s(threads: int, cores: int) -> float:
    """Seconds of a byte while so many threads take memory at once: CPU time of one, times the threads of a core."""
    found: list[float] = []

    def work() -> None:
        found.append(min(_once(BLOCK_BYTES) for _ in range(TRIES)))

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return float(np.median(found)) * max(1.0, threads / cores)


def _once(nbytes: int) -> float:
    """CPU seconds a byte of filling a new block and giving it back, less those of filling one that is there."""
    start = time.thread_time()
    block = mmap.mmap(-1, nbytes)
    array = np.frombuffer(block, np.uint8)
    array.fill(1)
    filled = time.thread_time()
    array.fill(2)
    again = time.thread_time()
    del array
    block.close()
    return max(0.0, (filled - start) - (again - filled) + (time.thread_time() - again)) / nbytes
