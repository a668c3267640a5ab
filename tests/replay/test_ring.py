import numpy as np
import pytest
import torch
from tensordict import TensorDict

from mhrl.replay.records import saved_rows
from mhrl.replay.ring import Ring


def rows_of(steps, num_envs, seed=0, size=3):
    rng = np.random.default_rng(seed)
    shape = (steps, num_envs)
    return TensorDict(
        {
            "small": torch.as_tensor(rng.normal(size=(*shape, size)), dtype=torch.float64),
            "flag": torch.as_tensor(rng.random(shape) < 0.5),
            "next": {"byte": torch.as_tensor(rng.integers(0, 256, (*shape, 2, 2)).astype(np.uint8))},
            "deep": {"er": {"half": torch.as_tensor(rng.normal(size=(*shape, 1)).astype(np.float16))}},
            "image": torch.as_tensor(rng.integers(0, 256, (*shape, 30, 40)).astype(np.uint8)),
            "number": torch.as_tensor(rng.integers(-5, 5, shape)),
        },
        shape,
    )


def equal(one, two):
    assert set(one.keys(True, True)) == set(two.keys(True, True))
    for key in one.keys(True, True):
        assert one[key].dtype == two[key].dtype and torch.equal(one[key], two[key]), key


@pytest.fixture(params=["memory", "files"])
def folder(request, tmp_path):
    return tmp_path if request.param == "files" else None


def test_rows_come_back_as_they_were_written(folder):
    ring, rows = Ring(7, 2, folder), rows_of(7, 2)
    for start, steps in ((0, 2), (2, 1), (3, 4)):
        ring.write(start, rows[start : start + steps])
        equal(saved_rows(ring.saved(start + steps)), rows[: start + steps])
    equal(ring.take(torch.arange(14)), rows.flatten())
    places = torch.tensor([13, 0, 5, 5, 2])
    equal(ring.take(places), rows.flatten()[places])
    equal(ring.at(4), rows[4])


def test_later_rows_take_the_place_of_earlier_ones(folder):
    ring, first, second = Ring(5, 3, folder), rows_of(5, 3), rows_of(2, 3, seed=1)
    ring.write(0, first)
    ring.write(2, second)
    equal(saved_rows(ring.saved(5)), torch.cat([first[:2], second, first[4:]]))


def test_what_is_taken_is_a_copy_and_one_time_is_a_view(folder):
    ring, rows = Ring(4, 2, folder), rows_of(4, 2)
    ring.write(0, rows)
    taken, held = ring.take(torch.tensor([2, 3])), ring.at(1)
    taken["small"].fill_(9.0)
    equal(saved_rows(ring.saved(4)), rows)
    held["small"].fill_(8.0)
    held["next", "byte"].fill_(7)
    rows["small"][1], rows["next", "byte"][1] = 8.0, 7
    equal(saved_rows(ring.saved(4)), rows)


# Numbers of 8 bytes: 128 are 1024 bytes. A record is padded to a multiple of its widest number.
@pytest.mark.parametrize(("size", "records"), [(128, [1024 + 8, 1200]), (129, [2, 1032, 1200])])
def test_small_entries_share_a_record_and_a_large_one_has_its_own(tmp_path, size, records):
    ring, rows = Ring(4, 2, tmp_path), rows_of(1, 2, size=size).select("small", "image")
    rows["flag"] = torch.ones(1, 2, 2, dtype=torch.bool)
    ring.write(0, rows)
    assert sorted(path.stat().st_size for path in tmp_path.iterdir()) == [8 * size for size in records]
    assert ring.row_bytes == sum(records)


def test_what_is_taken_lies_in_one_piece_each():
    ring = Ring(4, 2)
    ring.write(0, rows_of(4, 2))
    taken = ring.take(torch.tensor([2, 3, 0]))
    assert all(taken[key].is_contiguous() for key in taken.keys(True, True))
    assert all(taken[key].untyped_storage().nbytes() == taken[key].nbytes for key in taken.keys(True, True))


def test_what_is_saved_is_a_view_and_is_restored_to_the_bit(folder, tmp_path):
    ring, rows = Ring(7, 2, folder), rows_of(5, 2)
    ring.write(0, rows)
    one, two = ring.saved(3), ring.saved(3)
    assert [a["bytes"].data_ptr() for a in one] == [b["bytes"].data_ptr() for b in two]
    torch.save(one, tmp_path / "saved.pt")
    other = tmp_path / "other"
    other.mkdir()
    restored = Ring(7, 2, None if folder is None else other)
    restored.write(0, rows_of(1, 2).select("flag"))  # of what was there before nothing is left
    restored.restore(torch.load(tmp_path / "saved.pt", weights_only=True))
    equal(saved_rows(restored.saved(3)), rows[:3])
    assert restored.row_bytes == ring.row_bytes
    ring.write(3, rows[3:])
    restored.write(3, rows[3:])
    equal(restored.take(torch.arange(10)), ring.take(torch.arange(10)))
    assert all(torch.equal(a["bytes"], b["bytes"]) for a, b in zip(ring.saved(5), restored.saved(5), strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.set("more", rows["flag"]), r"holds more as None, the new rows have it as bool \[2\]"),
        (lambda rows: rows.exclude("image"), r"holds image as uint8 \[2, 30, 40\], the new rows have it as None"),
        (lambda rows: rows.set("small", rows["small"].float()), r"small as float64 \[2, 3\], .* as float32 \[2, 3\]"),
        (lambda rows: rows.set(("deep", "er", "half"), rows["number"]), r"deep.er.half as float16 .* int64 \[2\]"),
    ],
)
def test_rows_of_another_layout_are_refused_and_nothing_is_written(change, message):
    ring, rows = Ring(4, 2), rows_of(2, 2)
    ring.write(0, rows)
    with pytest.raises(ValueError, match=message):
        ring.write(0, change(rows_of(2, 2, seed=1)))
    equal(saved_rows(ring.saved(2)), rows)
