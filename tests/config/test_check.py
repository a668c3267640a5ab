import pytest

from mhrl.config import ConfigError, Group, check_fields, check_present, nearest

FIELDS = {"seed": int, "eval": {"every": int, "episodes": int}, "env": Group({"mode": str})}


def test_known_keys_pass_at_every_level_and_take_their_type():
    given = {"seed": 1e6, "eval": {"every": 2.0}, "env": {"mode": "x", "anything": {"goes": 1.0}}}
    found = check_fields(given, FIELDS)
    assert found == {"seed": 1_000_000, "eval": {"every": 2}, "env": {"mode": "x", "anything": {"goes": 1.0}}}
    assert type(found["seed"]) is type(found["eval"]["every"]) is int
    assert list(found["env"]) == ["mode", "anything"] and type(given["seed"]) is float
    assert check_fields({}, FIELDS) == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sed": 1}, r"^unknown key sed: did you mean seed\?$"),
        ({"eval": {"evry": 1}}, r"^unknown key eval.evry: did you mean every\?$"),
        ({"zzz": {}}, r"^unknown key zzz: choose from env, eval, seed$"),
        ({1: {}}, r"^unknown key 1: choose from env, eval, seed$"),
        ({"eval": 5}, r"^eval is 5: a mapping with every, episodes is expected$"),
        ({"eval": None}, r"^eval is None: a mapping"),
        ({"env": 5}, r"^env is 5: a mapping is expected$"),
        ({"env": [1]}, r"^env is \[1\]: a mapping is expected$"),
        ({"env": {"mode": 5}}, r"^env.mode is 5: text is expected$"),
        ({"seed": {"a": 1}}, r"^seed is {'a': 1}: a whole number is expected$"),
    ],
)
def test_e01_what_is_unknown_or_does_not_fit_is_refused_by_key(given, message):
    with pytest.raises(ConfigError, match=message):
        check_fields(given, FIELDS)


def test_names_below_a_key_are_told_in_full():
    with pytest.raises(ConfigError, match=r"^unknown key losses.actor.sed"):
        check_fields({"sed": 1}, FIELDS, "losses.actor.")


def test_what_is_missing_is_named_at_every_level():
    check_present({"seed": 1, "eval": {"every": 1, "episodes": 1}, "env": {}}, FIELDS)
    for given, key in (({"seed": 1}, "eval"), ({"seed": 1, "eval": {"every": 1}}, "eval.episodes")):
        with pytest.raises(ConfigError, match=rf"^{key} is missing$"):
            check_present(given, FIELDS)


def test_nearest_of_nothing_close_lists_what_is_valid():
    assert nearest("widht", ["lr", "widths"]) == ": did you mean widths?"
    assert nearest("zzz", ["lr", "widths"]) == ": choose from lr, widths"
    assert nearest("zzz", []) == ": nothing can be set here"
