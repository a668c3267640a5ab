import pytest

from mhrl.exploration import Gaussian, OrnsteinUhlenbeck


@pytest.mark.parametrize("kind", [Gaussian, OrnsteinUhlenbeck])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"std": -0.1}, "exploration.std is -0.1"),
        ({"std": float("nan")}, "exploration.std is nan"),
        ({"std": float("inf")}, "exploration.std is inf"),
        ({"std_end": -1.0, "anneal_frames": 5}, "exploration.std_end is -1.0"),
        ({"std_end": 0.0}, "exploration.anneal_frames is 0"),
        ({"std_end": 0.0, "anneal_frames": -3}, "exploration.anneal_frames is -3"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(kind, fields, message):
    with pytest.raises(ValueError, match=message):
        kind(**fields)


def test_the_schedule_ends_where_it_starts_unless_told_otherwise():
    assert Gaussian(0.3).end == 0.3 and Gaussian(0.3, std_end=0.0, anneal_frames=1).end == 0.0
