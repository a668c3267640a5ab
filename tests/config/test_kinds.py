from pathlib import Path

import pytest
from hydra import initialize_config_dir

from mhrl.config import ConfigError, group_choice, head_kinds

CONFIGS = Path(__file__).parents[2] / "configs"


def test_every_yaml_of_the_group_is_a_kind_with_its_defaults():
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        kinds = head_kinds()
    assert set(kinds) == {path.stem for path in (CONFIGS / "head").glob("*.yaml")} >= {"deterministic", "critic"}
    assert kinds["critic"]["_target_"] == "mhrl.heads.QHead"
    assert all(type(kind) is dict and "_target_" in kind for kind in kinds.values())


def test_a_file_of_a_group_is_what_its_choice_stands_for():
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        assert group_choice("aggregator", "weighted_sum") == {"_target_": "mhrl.aggregators.WeightedSum"}
        assert group_choice("optimizer", "adam")["betas"] == [0.9, 0.999]
        with pytest.raises(ConfigError, match=r"aggregator=dwaa is no file in configs/aggregator: did you mean dwa\?"):
            group_choice("aggregator", "dwaa")


def test_a_kind_of_the_users_own_is_found(tmp_path):
    (tmp_path / "head").mkdir()
    (tmp_path / "head" / "mine.yaml").write_text("_target_: my_heads.Mine\nwidths: [3]\n")
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        assert head_kinds() == {"mine": {"_target_": "my_heads.Mine", "widths": [3]}}
