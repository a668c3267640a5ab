"""From what a user wrote to a config that says everything: each head with its leaf and dimensions, each loss."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hydra.utils import get_object

from mhrl.config import ConfigError, Rate, as_annotated, check_arguments, check_fields, nearest
from mhrl.envs import Leaf
from mhrl.heads import ActionHead, CriticHead
from mhrl.layout import VALUE

HEAD_FIELDS: dict[str, Any] = {
    "kind": str,
    "leaf": str | None,
    "dims": list[int] | None,
    "bins": int | None,
    "in_keys": str | list[str],
    "lr": Rate,
    "exploration": dict[str, Any] | None,
}
"""Fields of a head that are not arguments of its class."""

LOSS_FIELDS: dict[str, Any] = {"weight": float, "trunk_grad": float}
IN_KEYS = ("features", "observation")
PROPOSING_KIND, BRANCH_KIND, VALUE_KIND = "deterministic", "branch", "critic"
"""Kinds of the heads that are derived."""

Heads = dict[str, dict[str, Any]]
Given = Mapping[str, Any]


def resolve_heads(
    listed: Mapping[str, Given | None],
    actions: Sequence[Leaf],
    kinds: Mapping[str, Given],
    *,
    bins: int | None = None,
    dueling: str = "none",
) -> Heads:
    """Derive the heads that were not listed, and complete those that were.

    Every action leaf that no listed head covers gets heads of its own: one that proposes for the whole of a continuous
    leaf, one branch for each dimension of a discrete leaf and of a continuous one that is cut into `bins`. A branch is
    called `<leaf>_<i>`, or by its leaf's name where the leaf has no dimensions (a Discrete). What is listed under a
    leaf's name, or for several dimensions, holds for all branches that come of it; what is listed under a branch's name
    wins. All is merged over the defaults of its kind. `value` is there where something needs it: the critic of an
    action without branches, and the state value that dueling branches share.

    Args:
        listed: `heads` of the config.
        actions: the env's action leaves.
        kinds: `{kind: defaults}`, `_target_` among them.
        bins: into how many values each dimension of a continuous leaf is cut, unless its head says so itself; None
            leaves it continuous.
        dueling: that of the network.

    Returns:
        `{head: fields}`, the acting heads first; every field of `HEAD_FIELDS` and every argument is there.

    Raises:
        ConfigError: naming the head and the field, leaf or dimension.
    """
    return _Resolver(listed, actions, kinds, bins).resolve(dueling)


def resolve_losses(
    listed: Mapping[str, Given | None],
    names: Sequence[str],
    proposing: Sequence[str],
    acting_trunk_grad: float,
    heads: Mapping[str, Given],
) -> dict[str, dict[str, float]]:
    """Complete `losses`: weight 1; `trunk_grad` 1, and the trunk's own default for losses of heads that propose.

    Args:
        listed: `losses` of the config; what is listed under a leaf's name holds for the losses of all its heads.
        names: the objective's losses.
        proposing: those of them that belong to heads which propose.
        acting_trunk_grad: the trunk's default for these.
        heads: the resolved heads.

    Raises:
        ConfigError: for an unknown loss or field, a value that is no number, or weights that are all zero.
    """
    losses = {name: {"weight": 1.0, "trunk_grad": acting_trunk_grad if name in proposing else 1.0} for name in names}
    for name, meant in losses_named(listed, "losses", names, heads):
        fields = check_fields(_mapping(f"losses.{name}", listed[name]), LOSS_FIELDS, f"losses.{name}.")
        for one in meant:
            losses[one] |= fields
    if all(loss["weight"] == 0 for loss in losses.values()):
        raise ConfigError("every loss has weight 0: nothing would be trained")
    return losses


def losses_named(
    listed: Iterable[str], where: str, losses: Collection[str], heads: Mapping[str, Given]
) -> Iterator[tuple[str, list[str]]]:
    """Each name in a mapping of losses, with the losses that it stands for: a leaf's name for those of all its heads.

    Args:
        listed: the names.
        where: the mapping's key, for messages.
        losses: the names of all losses.
        heads: the resolved heads.

    Returns:
        Leaves first: what is listed under a loss's own name comes last, and wins.

    Raises:
        ConfigError: for a name that is neither.
    """
    of_leaf: dict[str, list[str]] = {}
    for loss in losses:
        if loss in heads and heads[loss]["leaf"]:
            of_leaf.setdefault(heads[loss]["leaf"], []).append(loss)
    for name in sorted(listed, key=lambda name: name in losses):
        if name not in losses and name not in of_leaf:
            raise ConfigError(f"unknown loss {where}.{name}{nearest(name, {*of_leaf, *losses})}")
        yield name, [name] if name in losses else of_leaf[name]


class _Resolver:
    """One resolution of `heads`."""

    def __init__(
        self, listed: Mapping[str, Given | None], actions: Sequence[Leaf], kinds: Mapping[str, Given], bins: int | None
    ) -> None:
        self.listed = {name: _mapping(f"heads.{name}", given) for name, given in listed.items()}
        self.leaves = {leaf.name: leaf for leaf in actions}
        self.kinds, self.bins = kinds, bins
        self.heads: Heads = {}
        # What a branch is called if nobody says otherwise.
        self.derived = {
            leaf.branch_name(dim): (leaf.name, dim) for leaf in actions if leaf.box.shape for dim in range(leaf.size)
        }

    def resolve(self, dueling: str) -> Heads:
        if VALUE in self.leaves and not any(given.get("leaf") == VALUE for given in self.listed.values()):
            raise ConfigError(
                f"the action leaf {VALUE!r} has the name of the critic: list a head of another name with leaf: {VALUE}"
            )
        parents = [name for name in self.listed if name != VALUE and not self._is_child(name)]
        for name in parents:
            self._add(name, self.listed[name], *self._coverage(name, self.listed[name]))
        for name in self.listed:
            if name != VALUE and name not in self.heads and name not in parents:
                self._add(name, self.listed[name], *self._coverage(name, self.listed[name]))
        for leaf in self.leaves.values():
            covered = {dim for head in self.heads.values() if head["leaf"] == leaf.name for dim in head["dims"]}
            if not covered:
                self._add(leaf.name, {}, leaf, list(range(leaf.size)))
            elif self._branches({}, leaf):
                for dim in sorted(set(range(leaf.size)) - covered):
                    self._add(leaf.branch_name(dim), {}, leaf, [dim])
        _check_cover(self.heads, self.leaves)
        self._add_value(dueling)
        return self.heads

    def _is_child(self, name: str) -> bool:
        """Whether a listed name is that of a branch which another listed entry makes."""
        base, _, dim = name.rpartition("_")
        return base in self.listed and base != VALUE and dim.isdecimal() and "leaf" not in self.listed[name]

    def _coverage(self, name: str, given: Given) -> tuple[Leaf, list[int]]:
        """Which leaf and which of its dimensions a listed head covers."""
        leaf = as_annotated(given.get("leaf"), HEAD_FIELDS["leaf"], f"heads.{name}.leaf")
        dims = as_annotated(given.get("dims"), HEAD_FIELDS["dims"], f"heads.{name}.dims")
        if leaf is None:
            if name in self.leaves:
                leaf = name
            elif name in self.derived:
                leaf, dim = self.derived[name]
                dims = [dim] if dims is None else dims
            elif len(self.leaves) == 1:
                (leaf,) = self.leaves
            else:
                raise ConfigError(f"heads.{name}.leaf is missing{nearest(name, {**self.leaves, **self.derived})}")
        if leaf not in self.leaves:
            raise ConfigError(f"heads.{name}.leaf is {leaf!r}, which is no action leaf{nearest(leaf, self.leaves)}")
        space, size = self.leaves[leaf].box, self.leaves[leaf].size
        dims = list(range(size)) if dims is None else dims
        if not dims or any(not 0 <= dim < size for dim in dims) or len(set(dims)) < len(dims):
            raise ConfigError(
                f"heads.{name}.dims is {dims}: a list of dimensions 0 to {size - 1} of {space}, each once, is expected"
            )
        return self.leaves[leaf], dims

    def _branches(self, given: Given, leaf: Leaf) -> bool:
        """Whether a head is a branch, as far as its kind is not named."""
        return leaf.discrete or given.get("bins", self.bins) is not None

    def _add(self, name: str, given: Given, leaf: Leaf, dims: list[int]) -> None:
        """Complete one listed or derived entry, and add the heads that come of it."""
        kind = BRANCH_KIND if self._branches(given, leaf) else PROPOSING_KIND
        head = self._complete(name, given, kind)
        if not issubclass(get_object(head["_target_"]), CriticHead) or not (
            len(dims) > 1 or (name == leaf.name and leaf.box.shape)
        ):
            self._put(name, self._placed(name, head, leaf, dims))
            return
        for dim in dims:
            branch = f"{name}_{dim}"
            own = self.listed.get(branch, {})
            if "dims" in own:
                raise ConfigError(f"heads.{branch}.dims means nothing: heads.{name} makes it, for dimension {dim}")
            merged = {**given, **own}
            if given.get("exploration") and own.get("exploration"):
                merged["exploration"] = {**given["exploration"], **own["exploration"]}
            self._put(branch, self._placed(branch, self._complete(branch, merged, kind), leaf, [dim]))

    def _placed(self, name: str, head: dict[str, Any], leaf: Leaf, dims: list[int]) -> dict[str, Any]:
        """A completed head at its place, if one of its class can be there."""
        branch = issubclass(get_object(head["_target_"]), CriticHead)
        return (self._branch if branch else self._proposing)(name, head, leaf, dims)

    def _put(self, name: str, head: dict[str, Any]) -> None:
        if name in self.heads:
            raise ConfigError(f"two heads would be called {name!r}: list one of them under another name, with its leaf")
        self.heads[name] = head

    def _proposing(self, name: str, head: dict[str, Any], leaf: Leaf, dims: list[int]) -> dict[str, Any]:
        if not issubclass(get_object(head["_target_"]), ActionHead):
            raise ConfigError(f"heads.{name}: {head['_target_']} is neither an ActionHead nor a CriticHead")
        if leaf.discrete:
            raise ConfigError(
                f"heads.{name}.kind is {head['kind']!r}, which proposes continuous values, and action leaf "
                f"{leaf.name!r} is discrete: {BRANCH_KIND!r} is expected"
            )
        if head["bins"] is not None:
            raise ConfigError(f"heads.{name}.bins means nothing to kind {head['kind']!r}: {BRANCH_KIND!r} is expected")
        return {**head, "leaf": leaf.name, "dims": dims}

    def _branch(self, name: str, head: dict[str, Any], leaf: Leaf, dims: list[int]) -> dict[str, Any]:
        if leaf.discrete:
            if head["bins"] is not None:
                raise ConfigError(f"heads.{name}.bins means nothing: action leaf {leaf.name!r} is discrete")
        else:
            head["bins"] = self.bins if head["bins"] is None else head["bins"]
            if head["bins"] is None or head["bins"] < 2:
                raise ConfigError(
                    f"heads.{name}.bins is {head['bins']}: into how many values, at least 2, a dimension of "
                    f"{leaf.name!r} is cut is expected; heads.{leaf.name}.bins and objective.bins say it for all"
                )
        return {**head, "leaf": leaf.name, "dims": dims}

    def _add_value(self, dueling: str) -> None:
        """The head `value`, where something needs it."""
        branches = [name for name, head in self.heads.items() if values_of(head, self.leaves)]
        if branches and dueling == "none":
            if VALUE in self.listed:
                raise ConfigError(
                    f"heads.{VALUE}: no loss would train it: the branches ({', '.join(branches)}) are the critics; "
                    "objective.dueling=mean adds a state value to them"
                )
            return
        value = self._complete(VALUE, self.listed.get(VALUE, {}), VALUE_KIND)
        if not issubclass(get_object(value["_target_"]), CriticHead):
            raise ConfigError(f"heads.{VALUE}: {value['_target_']} is no CriticHead")
        for field in ("leaf", "dims", "bins", "exploration"):
            if value[field]:
                raise ConfigError(f"heads.{VALUE}.{field} means nothing: it judges the whole action")
        self.heads[VALUE] = value

    def _complete(self, name: str, given: Given, kind: str) -> dict[str, Any]:
        """One head's fields, over the defaults of its kind."""
        kind = as_annotated(given.get("kind", kind), str, f"heads.{name}.kind")
        if "_target_" not in given and kind not in self.kinds:
            raise ConfigError(f"heads.{name}.kind is {kind!r}, which is no kind of head{nearest(kind, self.kinds)}")
        defaults = {} if "_target_" in given else self.kinds[kind]
        head: dict[str, Any] = {
            **{"kind": kind, "leaf": None, "dims": None, "bins": None},
            **{"in_keys": ["features"], "lr": None, "exploration": {}},
            **defaults,
            **given,
        }
        if "_target_" in given and "kind" not in given:
            head["kind"] = str(given["_target_"]).rsplit(".", 1)[-1]
        head = check_arguments(head, f"heads.{name}", injected=("in_features", "space", "outputs"), also=HEAD_FIELDS)
        head["exploration"] = head["exploration"] or {}
        in_keys = [head["in_keys"]] if isinstance(head["in_keys"], str) else head["in_keys"]
        if not in_keys or not set(in_keys) <= set(IN_KEYS) or len(set(in_keys)) != len(in_keys):
            raise ConfigError(f"heads.{name}.in_keys is {in_keys}: a list of {' and '.join(IN_KEYS)} is expected")
        head["in_keys"] = [key for key in IN_KEYS if key in in_keys]
        return head


def values_of(head: Given, leaves: Mapping[str, Leaf]) -> int:
    """How many values a resolved head chooses from: 0 for one that proposes, and for `value`."""
    if head["leaf"] is None or not issubclass(get_object(head["_target_"]), CriticHead):
        return 0
    if head["bins"] is not None:
        return head["bins"]
    (dim,) = head["dims"]
    return leaves[head["leaf"]].sizes[dim]


def _check_cover(heads: Mapping[str, Given], leaves: Mapping[str, Leaf]) -> None:
    """Every dimension of every leaf belongs to exactly one head."""
    owners: dict[tuple[str, int], str] = {}
    for name, head in heads.items():
        for dim in head["dims"]:
            if (other := owners.setdefault((head["leaf"], dim), name)) != name or head["dims"].count(dim) > 1:
                raise ConfigError(
                    f"dimension {dim} of action leaf {head['leaf']!r} is covered twice, by heads {other!r} and "
                    f"{name!r}: set heads.<name>.dims, or correct a misspelt head"
                )
    for name, leaf in leaves.items():
        missing = [dim for dim in range(leaf.size) if (name, dim) not in owners]
        if missing:
            raise ConfigError(
                f"no head covers dimension {', '.join(map(str, missing))} of action leaf {name!r}: list a head with "
                f"leaf: {name} and these dims"
            )


def _mapping(where: str, given: Any) -> dict[str, Any]:  # noqa: ANN401
    """A listed entry as a dict; None is an empty one."""
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(f"{where} is {given!r}: a mapping of fields is expected")
    return dict(given or {})
