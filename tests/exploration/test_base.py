import pytest

from mhrl.exploration import EpsilonGreedy, Gaussian, OrnsteinUhlenbeck


@pytest.mark.parametrize("kind", [Gaussian, OrnsteinUhlenbeck, EpsilonGreedy])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"std": -0.1}, "exploration.std is -0.1"),
        ({"std": float("nan")}, "exploration.std is nan"),
        ({"std": float("inf")}, "exploration.std is inf"),
        ({"std_end": -1.0, "anneal_frames": 5}, "exploration.std_end is -1.0"),
        ({"std_end": 0.0}, "exploration.anneal_frames is 0"),
        ({"std_end": 0.0, "anneal_frames": -3}, "exploration.anneal_frames is -3"),
        ({"epsilon": -0.1}, "exploration.epsilon is -0.1: a number from 0 to 1"),
        ({"epsilon": 1.01}, "exploration.epsilon is 1.01"),
        ({"epsilon": float("nan")}, "exploration.epsilon is nan"),
        ({"epsilon_end": 2.0, "anneal_frames": 5}, "exploration.epsilon_end is 2.0"),
        ({"epsilon_end": 0.0}, "exploration.anneal_frames is 0: a whole number >= 1"),
        ({"anneal_start": -1}, "exploration.anneal_start is -1: a whole number >= 0"),
        ({"anneal_start": 0.5}, "exploration.anneal_start is 0.5"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(kind, fields, message):
    with pytest.raises(ValueError, match=message):
        kind(**fields)


def test_the_schedule_ends_where_it_starts_unless_told_otherwise():
    assert Gaussian(0.3).last_std == 0.3 and Gaussian(0.3, std_end=0.0, anneal_frames=1).last_std == 0.0
    fading = EpsilonGreedy(epsilon=0.3, epsilon_end=0.0, anneal_frames=1)
    assert EpsilonGreedy(epsilon=0.3).last_epsilon == 0.3 and fading.last_epsilon == 0.0
    assert Gaussian(0.3).epsilon == Gaussian(0.3).last_epsilon == 0.0


def test_a_schedule_that_starts_late_must_lead_somewhere():
    with pytest.raises(ValueError, match=r"exploration.anneal_start is 100, but nothing changes"):
        Gaussian(0.1, anneal_start=100)
    assert Gaussian(0.1, std_end=0.0, anneal_start=100, anneal_frames=1).anneal_start == 100
