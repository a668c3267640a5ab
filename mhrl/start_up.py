"""What a run says about itself: before its first env step, and what may be typed after its last."""

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mhrl
from mhrl.checkpoint import is_trusted, targets
from mhrl.checkpoint_folder import CheckpointFolder
from mhrl.layout import VALUE
from mhrl.loggers import HeadRow, LossRow, RunInfo
from mhrl.network import Network
from mhrl.objectives import Objective


def run_info(
    config: Mapping[str, Any],
    network: Network,
    objective: Objective,
    wandb: str,
    run_dir: Path,
    timid: Sequence[str] = (),
) -> RunInfo:
    """Collect the first block: who acts and judges, which loss trains what, and with which factors.

    Args:
        config: the resolved config.
        network: whose heads are shown.
        objective: whose routes are shown.
        wandb: the W&B mode and why.
        run_dir: the run's folder.
        timid: branches that hardly explore, see `ActionNoise`.
    """
    shared = any(True for _ in network.trunk.parameters())
    aggregator = objective.aggregator
    return RunInfo(
        version=mhrl.__version__,
        experiment=config["name"],
        env=str(config["env"].get("id") or config["env"]["_target_"]),
        seed=config["seed"],
        device=config["device"],
        total_frames=config["total_frames"],
        wandb=wandb,
        run_dir=run_dir,
        aggregator=aggregator.label,
        config=dict(config),
        heads=tuple(_head_row(name, config, network) for name in network.specs),
        losses=tuple(
            LossRow(
                name=name,
                trains=modules,
                weight=config["losses"][name]["weight"],
                trunk_factor=config["losses"][name]["trunk_grad"] if shared else None,
                row=objective.row_of[name],
                rule=aggregator.sets(name),
            )
            for name, modules in objective.routes.items()
        ),
        notes=tuple(_notes(config, network, objective, timid)),
    )


def _notes(config: Mapping[str, Any], network: Network, objective: Objective, timid: Sequence[str]) -> Iterator[str]:
    """What a user may not have meant, a sentence each."""
    losses, options = config["losses"], config.get("objective", {})
    if not any(True for _ in network.trunk.parameters()):
        trunk = config["trunk"]["_target_"].rsplit(".", 1)[-1]
        yield f"{trunk} has no parameters: the losses meet in no trunk, there is nothing to balance"
    computed = {name for name, loss in losses.items() if loss["weight"]}
    trained = {module for name, modules in objective.routes.items() if name in computed for module in modules}
    blind = [name for name in network.proposing if losses.get(name, {}).get("weight")]
    if blind and not any(f"head_{critic}" in trained for critic in network.critics):
        yield f"no loss trains a critic, which {', '.join(blind)} would follow"
    rows = objective.rows(name for name, modules in objective.routes.items() if "trunk" in modules and name in computed)
    if objective.aggregator.balances and len(rows) < 2:
        words = f"all losses reach the trunk by row {rows[0]}" if rows else "no loss reaches the trunk"
        yield f"{objective.aggregator.label} has nothing to balance: {words}"
    if dropped := [name for name, loss in losses.items() if loss["weight"] == 0]:
        yield f"weight 0, not computed: {', '.join(dropped)}"
    if rising := [name for name, loss in losses.items() if loss["weight"] < 0]:
        yield f"negative weight, made larger rather than smaller: {', '.join(rising)}"
    linear = [name for name in network.branches if network.proposing and config["heads"][name].get("widths") == []]
    if linear:
        yield f"no hidden layer: values are linear in the continuous action: {', '.join(linear)}"
    if not network.branches and options.get("dueling", "none") != "none":
        yield "objective.dueling means nothing: there is no branch"
    if not network.proposing and options.get("policy_delay", 1) != 1:
        yield "objective.policy_delay means nothing: no head proposes"
    if timid:
        words = "epsilon is 0, and std too small to change a choice; exploration.epsilon=0.1, for instance, would"
        yield f"hardly any exploration by {', '.join(timid)}: {words}"
    if config["learning_starts"] >= config["total_frames"]:
        yield "learning_starts is not below total_frames: there will be no update"


def _head_row(name: str, config: Mapping[str, Any], network: Network) -> HeadRow:
    """One head's line of the table."""
    head = config["heads"][name]
    rate = config["optimizer"]["lr"] if head["lr"] is None else head["lr"]
    return HeadRow(name, head["kind"], _covers(name, network), " + ".join(head["in_keys"]), rate)


def _covers(name: str, network: Network) -> str:
    """What a head decides: a leaf, some of its dimensions, among how many values; or what it judges."""
    if name == VALUE:
        judged = "V(s" if network.branches else "Q(s"
        return f"{judged}, {'x' if network.branches else 'a'})" if network.proposing else f"{judged})"
    spec = network.specs[name]
    leaf = next(leaf for leaf in network.layout.leaves if leaf.name == spec.leaf)
    place = leaf.name if spec.dims == tuple(range(leaf.size)) else f"{leaf.name}{list(spec.dims)}"
    return f"{place}, {spec.values} values" if spec.values else place


def next_commands(
    config: Mapping[str, Any], checkpoints: CheckpointFolder, status: str, wandb_mode: str, launched: Path
) -> tuple[str, ...]:
    """The commands that a user may want to type when a run has ended.

    Args:
        config: the resolved config.
        checkpoints: those of the run.
        status: how it ended.
        wandb_mode: in which W&B was in the end.
        launched: the folder where it was started.
    """
    run = checkpoints.path.parent
    inside = run.is_relative_to(launched)
    shown = run.relative_to(launched) if inside else run
    trust = "" if all(is_trusted(target) for _, target in targets(config)) else " trust_config=true"
    commands = []
    if checkpoints.last.is_file():
        if status != "finished":
            commands.append(f"{_command('train')} {shlex.quote(f'resume={shown}')}{trust}")
        commands.append(f"{_command('evaluate')} {shlex.quote(f'run={shown}')}{trust}")
    elif checkpoints.best.is_file():
        best = shown / "checkpoints" / checkpoints.best.name
        commands.append(f"{_command('evaluate')} {shlex.quote(f'run={best}')}{trust}")
    if wandb_mode == "offline":
        commands.append(f"wandb leet inspect --summary {shlex.quote(config['wandb']['dir'] + '/wandb')}")
    return tuple(commands)


def _command(name: str) -> str:
    """How the user starts `name`, `train` or `evaluate`: as this process was started."""
    script = Path(sys.argv[0])
    if script.name.startswith("mhrl-"):
        return f"mhrl-{name}"
    folder = script.parent if (script.parent / "train.py").is_file() else Path()
    return f"python {shlex.quote(str(folder / ('train.py' if name == 'train' else 'scripts/evaluate.py')))}"
