"""Configuration: open mappings, head kinds, and our own check of the composed whole. Imports no torch."""

from mhrl.config.arguments import check_arguments
from mhrl.config.check import Group, check_fields, check_present
from mhrl.config.env import check_env, find_spec
from mhrl.config.errors import ConfigError, nearest
from mhrl.config.kinds import head_kinds
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
    "find_spec",
    "head_kinds",
    "kind_of",
    "nearest",
    "register",
]
