"""Positions in global samples: what each shard has read, counted by dealing samples out by hand."""

import pytest

from jaxplan.checkpoint.position import Position
from jaxplan.errors import InputError


@pytest.mark.parametrize("shards", [1, 3, 4, 7])
@pytest.mark.parametrize("samples", [0, 1, 12, 29])
def test_samples_dealt_out_one_by_one(samples, shards):
    dealt = [sum(i % shards == shard for i in range(samples)) for shard in range(shards)]
    place = Position(samples, shards=2).on(shards)
    assert [place.local(shard) for shard in range(shards)] == dealt


def test_readers_with_their_own_files_take_no_other_number_of_shards():
    place = Position(64, shards=4, order="shard")
    assert place.on(4) == place
    with pytest.raises(InputError, match="has 8 shards, the checkpoint's had 4"):
        place.on(8)


def test_another_shuffle_is_refused():
    with pytest.raises(InputError, match="seed 1, the checkpoint's with 0"):
        Position(64).on(1, seed=1)


@pytest.mark.parametrize("arguments", [{"samples": -1}, {"samples": 1, "shards": 0}, {"samples": 1, "order": "file"}])
def test_impossible_positions(arguments):
    with pytest.raises(ValueError):
        Position(**arguments)
