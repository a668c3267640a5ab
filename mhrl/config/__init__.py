"""Configuration: open mappings, head kinds, and our own check of the composed whole. Imports no torch."""

from mhrl.config.arguments import check_arguments, find_target, signature_of
from mhrl.config.check import Group, check_fields, check_present
from mhrl.config.env import check_env, find_spec
from mhrl.config.errors import ConfigError, nearest
from mhrl.config.extras import extra_for
from mhrl.config.kinds import group_choice, head_kinds
from mhrl.config.open_mappings import register
from mhrl.config.schema import ENV_FIELDS, OBJECTIVE_FIELDS, OPTIMIZER_FIELDS, SCHEMA, Rate, check_config
from mhrl.config.values import as_annotated, kind_of

__all__ = [
    "ENV_FIELDS",
    "OBJECTIVE_FIELDS",
    "OPTIMIZER_FIELDS",
    "SCHEMA",
    "ConfigError",
    "Group",
    "Rate",
    "as_annotated",
    "check_arguments",
    "check_config",
    "check_env",
    "check_fields",
    "check_present",
    "extra_for",
    "find_spec",
    "find_target",
    "group_choice",
    "head_kinds",
    "kind_of",
    "nearest",
    "register",
    "signature_of",
]
