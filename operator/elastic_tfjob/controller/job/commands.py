"""Commands to a job's launchers: which pods lack a command, and its text. Pure."""

from collections.abc import Iterable
from dataclasses import replace
from hashlib import blake2b
from math import log2
from typing import Final, Literal

import orjson

from elastic_tfjob.controller.job.context import COMMANDS_PER_PASS, ReconcileContext
from elastic_tfjob.controller.job.pods import Role, TFConfigs, roles_of
from elastic_tfjob.controller.model.command import Command, abridged
from elastic_tfjob.controller.model.memory import save_requested
from elastic_tfjob.controller.model.state import Next
from elastic_tfjob.controller.model.target import Mode

Action = Literal["prepare", "switch", "run", "save"]
# Seconds after which an unacknowledged command is sent again; each further repetition takes twice as long.
_NUDGE_S: Final = 5.0


def run_commands(ctx: ReconcileContext) -> dict[Role, str]:
    """Returns the commands by which every pod runs the state's generation. A pod without any command runs generation 0
    by itself, unless the chief is to save."""
    state, pods = ctx.current, ctx.by_role
    saves = save_requested(state.memory) is not None
    roles = [
        role
        for role in roles_of(state)
        if state.generation or (role in pods and pods[role].command) or (saves and role == ctx.chief)
    ]
    return send_commands(ctx, roles, "run", None)


def send_commands(ctx: ReconcileContext, roles: Iterable[Role], action: Action, coming: Next | None) -> dict[Role, str]:
    """Returns the commands that differ from those the pods have, and those that do not seem to reach their pods; at
    most COMMANDS_PER_PASS.

    The kubelet delivers an annotation within a second. If the annotation changes while the previous change is still
    being delivered (on a busy node), it waits until the kubelet's next periodic sync, up to a minute and a half later.
    Any change of the pod triggers a sync, so a repeated command gets a space at its end, which launchers ignore, or
    loses it.
    """
    commands: dict[Role, str] = {}
    if not ctx.launcher:
        return commands
    pods = ctx.by_role
    chief, shared = ctx.chief, None
    own = SharedCommand.of_chief(ctx, action, coming)
    space = " " * (int(log2(max(1.0, 2 * ctx.elapsed_s / _NUDGE_S))) % 2)
    for role in roles:
        pod = pods.get(role)
        if pod is None or pod.terminating or pod.stopped_by_us:
            continue
        if own is not None and role == chief:
            order = own
        else:
            order = shared = shared or SharedCommand.of(ctx, action, coming)
        wanted = order.kept(role)
        if pod.command.rstrip() != wanted:
            commands[role] = order.text(role)
        elif pod.command != wanted + space and _not_acknowledged(ctx, role, order):
            commands[role] = order.text(role) + space
        if len(commands) == COMMANDS_PER_PASS:
            break
    return commands


class SharedCommand:
    """One command to many pods, whose texts differ only in the last part of TF_CONFIG; without TF_CONFIG if `configs`
    is None."""

    def __init__(self, command: Command, configs: TFConfigs | None) -> None:
        self.generation = command.generation
        self.action = command.action
        self._configs = configs
        if configs is None:
            self._begin, self._end = replace(command, tf_config=None).to_json(), ""
        else:
            begin, self._end = command.to_json().split('"tf_config":""')
            self._begin = f'{begin}"tf_config":'
        self._heads: dict[str, str] = {}
        self._hashes: dict[str, blake2b] = {}

    @classmethod
    def of(
        cls,
        ctx: ReconcileContext,
        action: Action,
        coming: Next | None,
        *,
        saved: int | None = None,
        request: int | None = None,
    ) -> "SharedCommand":
        """Returns the command to run the state's size, or to change to the coming one. `saved`: the step from which a
        chief that has moved goes on. `request`: the number of a save that a running chief is asked for."""
        size = coming or ctx.current
        mode: Mode = coming.mode if coming else "overlap"
        if action == "save" and ctx.current.stop is not None:
            request = ctx.current.stop.request
        durable = True if coming is not None and ctx.elasticity.durable_switch else None
        chief = ctx.chief_pod if coming is not None and action == "switch" and ctx.chief_moves else None
        command = Command(
            size.generation,
            action,
            "",
            mode,
            ctx.timeouts.checkpoint_s,
            request,
            durable,
            old_chief=chief.status_address if chief is not None else None,
            saved=saved,
        )
        local = ctx.sizes.is_local(size.replicas)
        return cls(command, None if local else ctx.sizes.tf_configs(size.replicas, size.slot, size.indexes))

    @classmethod
    def of_chief(cls, ctx: ReconcileContext, action: Action, coming: Next | None) -> "SharedCommand | None":
        """Returns the command to a chief whose next program is in another pod, or that has come from one, or that is to
        save; None if nothing of it is so."""
        if coming is not None and ctx.chief_moves:
            return cls(Command(coming.generation, action, None, "leave", ctx.timeouts.checkpoint_s), None)
        request = save_requested(ctx.current.memory) if action == "run" else None
        if ctx.saved is None and request is None:
            return None
        return cls.of(ctx, action, coming, saved=ctx.saved, request=request)

    def text(self, role: Role) -> str:
        """Returns a pod's command."""
        return "".join(self._parts(role))

    def kept(self, role: Role) -> str:
        """Returns the abridged form of a pod's command that is kept once the pod has it."""
        begin, rest = self._parts(role)
        return abridged(rest, begin, self._hashes)

    def _parts(self, role: Role) -> tuple[str, str]:
        """Returns the part common to all pods' commands, and the rest."""
        if self._configs is None:
            return self._begin, ""
        head, tail = self._configs.parts(*role)
        if head not in self._heads:
            self._heads[head] = self._begin + orjson.dumps(head).decode().removesuffix('"')
        return self._heads[head], orjson.dumps(tail).decode().removeprefix('"') + self._end


def _not_acknowledged(ctx: ReconcileContext, role: Role, command: SharedCommand) -> bool:
    """Whether a replica's exporter reports that its launcher has not received a command."""
    report = ctx.report(role)
    if report is None or report.generation is None:
        return False
    if command.action == "run":
        return report.generation != command.generation or report.prepared is not None
    if command.action == "save":
        stop = ctx.current.stop
        return stop is not None and (report.saved is None or report.saved.request != stop.request)
    if command.action == "switch" and role != ctx.chief:  # only the chief decides, and only it answers
        return False
    answer = report.prepared if command.action == "prepare" else report.switch
    return command.generation not in (report.generation, answer and answer.generation)
