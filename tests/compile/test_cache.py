"""The persistent cache: what is damaged is a miss, what cannot be written is a warning."""

import errno
import json
import multiprocessing
import os
from pathlib import Path

import pytest

from jaxplan.compile import cache as cache_module
from jaxplan.compile.cache import Cache, default_root, digest, source_hash

PARTS = {"plan": "abc", "versions": {"jax": "0.10.2"}}


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


def entry_path(cache) -> Path:
    path = cache.path("compiled", digest(PARTS))
    assert path is not None
    return path


def test_what_is_stored_is_found_whatever_the_order_of_keys(cache):
    assert cache.get("compiled", PARTS) is None
    cache.put("compiled", PARTS, {"total_bytes": 17, "names": ["a"]})
    assert cache.get("compiled", dict(reversed(PARTS.items()))) == {"total_bytes": 17, "names": ["a"]}
    assert cache.get("partitioned", PARTS) is None
    assert cache.nbytes() == entry_path(cache).stat().st_size


def test_another_version_is_a_miss(cache):
    cache.put("compiled", PARTS, 1)
    assert cache.get("compiled", {**PARTS, "versions": {"jax": "0.12.0"}}) is None


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", '{"schema": "jaxplan.cache/1"}', "\x00\x01"])
def test_a_damaged_entry_is_a_miss_and_can_be_replaced(cache, damage):
    cache.put("compiled", PARTS, 1)
    entry_path(cache).write_text(damage)
    assert cache.get("compiled", PARTS) is None
    cache.put("compiled", PARTS, 2)
    assert cache.get("compiled", PARTS) == 2


def test_a_changed_figure_and_half_a_file_are_misses(cache):
    cache.put("compiled", PARTS, {"total_bytes": 1234})
    path = entry_path(cache)
    text = path.read_text()
    path.write_text(text.replace("1234", "1235"))
    assert cache.get("compiled", PARTS) is None
    path.write_text(text[: len(text) // 2])
    assert cache.get("compiled", PARTS) is None


def test_an_entry_of_another_schema_or_key_is_a_miss(cache):
    cache.put("compiled", PARTS, 1)
    entry = json.loads(entry_path(cache).read_text())
    for change in ({"schema": "jaxplan.cache/0"}, {"key": "0" * 32}):
        entry_path(cache).write_text(json.dumps({**entry, **change}))
        assert cache.get("compiled", PARTS) is None


def test_a_full_disk_is_one_warning_and_leaves_nothing_behind(cache, monkeypatch):
    def full(*_args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cache_module.os, "replace", full)
    for _ in range(2):
        cache.put("compiled", PARTS, 1)
    assert len(cache.warnings) == 1 and "No space left on device" in cache.warnings[0]
    assert [p for p in cache.root.rglob("*") if p.is_file()] == []


def test_a_root_that_is_a_file_is_a_warning(tmp_path):
    (tmp_path / "cache").write_text("not a folder")
    cache = Cache(tmp_path / "cache")
    cache.put("compiled", PARTS, 1)
    assert cache.warnings and cache.get("compiled", PARTS) is None


def write_many(root: Path, who: int) -> None:
    cache = Cache(root)
    for round_ in range(40):
        cache.put("compiled", PARTS, {"who": who, "round": round_, "padding": [who] * 20_000})


def test_writers_at_the_same_time_leave_whole_entries(cache):
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_many, args=(cache.root, who)) for who in (1, 2)]
    for writer in writers:
        writer.start()
    seen = 0
    while any(writer.is_alive() for writer in writers):
        path = entry_path(cache)
        if path.exists():
            value = cache.get("compiled", PARTS)       # a miss here would be half an entry
            assert value is not None and set(value["padding"]) == {value["who"]}
            seen += 1
    assert seen > 0 and all(writer.exitcode == 0 for writer in writers)
    assert list(cache.root.rglob("*.part")) == []


def test_where_it_lies(monkeypatch, tmp_path):
    monkeypatch.setenv("JAXPLAN_CACHE", str(tmp_path))
    assert default_root() == tmp_path
    monkeypatch.setenv("JAXPLAN_CACHE", "off")
    assert default_root() is None
    monkeypatch.delenv("JAXPLAN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_root() == tmp_path / "jaxplan"


def test_no_cache_keeps_nothing():
    cache = Cache(None)
    cache.put("compiled", PARTS, 1)
    assert cache.get("compiled", PARTS) is None and cache.nbytes() == 0 and cache.warnings == []


def test_the_hash_of_sources_follows_the_sources(monkeypatch, tmp_path):
    (tmp_path / "workload").mkdir()
    (tmp_path / "workload" / "a.py").write_text("x = 1\n")
    monkeypatch.setattr(cache_module, "PACKAGE", tmp_path)
    source_hash.cache_clear()
    first = source_hash("workload")
    source_hash.cache_clear()
    assert source_hash("workload") == first
    (tmp_path / "workload" / "a.py").write_text("x = 2\n")
    source_hash.cache_clear()
    assert source_hash("workload") != first
    source_hash.cache_clear()
