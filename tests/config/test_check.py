import pytest

from mhrl.config import ConfigError, check_arguments, check_at_least, check_keys, nearest

VALID = {"seed": None, "eval": {"every": None, "episodes": None}, "env": None}


def takes(widths, lr=0.1):
    """A target of a signature that is spelt out."""


def takes_all(widths, **others):
    """A target that takes anything."""


HERE = "mhrl.objectives.DDPG"


def test_known_keys_pass_at_every_level():
    check_keys({"seed": 1, "eval": {"every": 2}, "env": {"anything": {"goes": 1}}}, VALID)
    check_keys({}, VALID)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sed": 1}, r"^unknown key sed: did you mean seed\?$"),
        ({"eval": {"evry": 1}}, r"^unknown key eval.evry: did you mean every\?$"),
        ({"experiment": {}}, r"^unknown key experiment: choose from env, eval, seed$"),
        ({"eval": 5}, r"^eval is 5: a mapping with every, episodes is expected$"),
        ({"eval": None}, r"^eval is None: a mapping"),
    ],
)
def test_e01_unknown_keys_are_refused_with_the_nearest(given, message):
    with pytest.raises(ConfigError, match=message):
        check_keys(given, VALID)


def test_nearest_of_nothing_close_lists_what_is_valid():
    assert nearest("widht", ["lr", "widths"]) == ": did you mean widths?"
    assert nearest("zzz", ["lr", "widths"]) == ": choose from lr, widths"


def test_e01_arguments_are_checked_against_the_signature():
    check_arguments({"_target_": HERE, "gamma": 0.9}, "objective", injected=("network", "aggregator"))
    with pytest.raises(ConfigError, match=r"unknown key objective.gama: did you mean gamma\?"):
        check_arguments({"_target_": HERE, "gama": 0.9}, "objective", injected=("network", "aggregator"))


def test_what_is_injected_cannot_be_configured():
    with pytest.raises(ConfigError, match=r"unknown key objective.network"):
        check_arguments({"_target_": HERE, "network": 1}, "objective", injected=("network", "aggregator"))


def test_further_fields_are_valid_and_suggested():
    check_arguments({"_target_": HERE, "lr": 1}, "objective", also=("lr",))
    with pytest.raises(ConfigError, match=r"unknown key objective.clip_nrm: did you mean clip_norm\?"):
        check_arguments({"_target_": HERE, "clip_nrm": 1}, "objective", also=("clip_norm",))


def test_a_target_that_takes_keywords_takes_all():
    check_arguments({"_target_": "gymnasium.make", "id": "X", "whatever": 1}, "env")


@pytest.mark.parametrize("target", ["no.such.Thing", "mhrl.objectives.Nope", "", None, 5])
def test_a_target_that_cannot_be_imported_is_named(target):
    with pytest.raises(ConfigError, match=rf"objective._target_={target} cannot be imported"):
        check_arguments({"_target_": target}, "objective")


def test_a_node_without_target_is_refused():
    with pytest.raises(ConfigError, match=r"trunk has no _target_"):
        check_arguments({"widths": [1]}, "trunk")


@pytest.mark.parametrize(("given", "right"), [(1, 1), (5, 5), (1e6, 1_000_000), (3.0, 3)])
def test_whole_numbers_at_or_above_the_bound_pass_and_become_ints(given, right):
    config = {"eval": {"every": given}}
    check_at_least(config, {"eval.every": 1})
    assert config == {"eval": {"every": right}} and type(config["eval"]["every"]) is int


def test_fractions_pass_where_the_bound_is_a_float():
    config = {"utd_ratio": 1, "other": 0.25}
    check_at_least(config, {"utd_ratio": 0.0, "other": 0.0})
    assert config == {"utd_ratio": 1.0, "other": 0.25}


@pytest.mark.parametrize("bad", [0, -1, 0.5, 1.5, float("nan"), float("inf"), None, "5", True, [1]])
def test_numbers_below_the_bound_and_other_things_are_refused_by_key(bad):
    with pytest.raises(ConfigError, match=r"eval.every is .*: a whole number >= 1 is expected"):
        check_at_least({"eval": {"every": bad}}, {"eval.every": 1})
