"""What this host has for compiles: cores, memory, and what a process uses of it. No JAX here."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from jaxplan.units import KIB


def cores() -> int:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int:
    """Memory of this host, or of the container around this process where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(limit).read_text()))
        except (OSError, ValueError):   # no such control group, or "max": no limit
            continue
    return total


def available_bytes() -> int:
    """Memory that can be had without swapping; half of it all where the kernel does not say."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return min(int(line.split()[1]) * KIB, memory_bytes())
    except OSError:
        pass
    return memory_bytes() // 2


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 where it is gone or the system does not say."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def cpu_model() -> str:
    """The processor's name and the cores that this process may use, as one line."""
    name = ""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
                break
    except OSError:
        pass
    return f"{name or platform.processor() or platform.machine() or 'CPU'}, {cores()} cores"
