"""A vector env with a process for each env, whose faults are named, bounded in time, and leave no process behind."""

import contextlib
import multiprocessing
import os
import queue
import select
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import connection, forkserver, parent_process, resource_tracker, util
from multiprocessing.process import BaseProcess
from typing import Any, final

from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import _async_worker

from mhrl.envs.canonical import CanonicalEnv
from mhrl.envs.faults import CLOSE_TIMEOUT, EnvError

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@final
class WorkerVectorEnv(AsyncVectorEnv[Any, Any]):
    """gymnasium's `AsyncVectorEnv` in autoreset mode SAME_STEP, with bounds.

    After an `EnvError` nothing but `close` is left to call.

    Args:
        factories: one for each env.
        timeout: seconds that an env has for each answer.

    Raises:
        EnvError: from every method but `close`: an env raised, its process died, or it did not answer in time.
    """

    def __init__(self, factories: Sequence[Callable[[], CanonicalEnv]], timeout: float) -> None:
        self.timeout = timeout
        _start_server()
        super().__init__(
            factories,
            shared_memory=True,
            copy=False,
            context="forkserver",
            worker=_worker,  # type: ignore[arg-type]
            autoreset_mode=AutoresetMode.SAME_STEP,
        )

    def _check_spaces(self) -> None:
        # The constructor's last call and the first one to the workers.
        pipes = zip(self.parent_pipes, self.processes, strict=True)
        self._pipes = [_Pipe(i, pipe, process, self.timeout) for i, (pipe, process) in enumerate(pipes)]
        self.parent_pipes = self._pipes  # type: ignore[assignment]
        # They do not heed the SIGTERM by which multiprocessing would end them when this process exits.
        util.Finalize(self, _kill, args=[self.processes], exitpriority=100)
        try:
            super()._check_spaces()
        except BaseException:
            self.close()
            raise

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        failed = [i for i, success in enumerate(successes) if not success]
        faults = []
        for _ in failed:
            try:
                index, kind, error, trace = self.error_queue.get(timeout=CLOSE_TIMEOUT)
            except queue.Empty:  # what it raised could not be pickled; its worker has printed it
                continue
            fault = error if isinstance(error, EnvError) else EnvError(index, f"{kind.__name__}: {error}")
            fault.add_note(trace)
            faults.append(fault)
        if faults:
            raise min(faults, key=lambda fault: fault.index)
        if failed:
            raise EnvError(failed[0], "its worker failed")

    def close_extras(self, timeout: float | None = CLOSE_TIMEOUT, terminate: bool = False) -> None:
        """Ask the workers to close their envs and end; kill those that have not within `timeout` seconds."""
        if not terminate:
            deadline = time.monotonic() + (timeout or 0)
            for pipe in self._pipes:
                with contextlib.suppress(EnvError):
                    pipe.send(("close", None))
            for pipe, process in zip(self._pipes, self.processes, strict=True):
                # An answer that nobody takes may be all that it waits for.
                with contextlib.suppress(EOFError, OSError):
                    while pipe.poll(max(0.0, deadline - time.monotonic())):
                        pipe.connection.recv()
                process.join(max(0.0, deadline - time.monotonic()))
        _kill(self.processes)
        for pipe in self._pipes:
            pipe.close()


class _Pipe:
    """The main process's end of the pipe to one worker; silence and death are `EnvError`s."""

    def __init__(self, index: int, pipe: connection.Connection, process: BaseProcess, timeout: float) -> None:
        self._index, self.connection, self._process = index, pipe, process
        self._timeout = timeout
        self._milliseconds = None if timeout == float("inf") else timeout * 1000
        # `Connection.poll` builds one each time, which costs as much as the rest of an answer.
        self._ready = select.poll()
        self._ready.register(pipe.fileno(), select.POLLIN)
        self.poll, self.close = pipe.poll, pipe.close

    def send(self, message: Any) -> None:  # noqa: ANN401
        """Send."""
        try:
            self.connection.send(message)
        except OSError as error:
            raise self._death() from error

    def recv(self) -> Any:  # noqa: ANN401
        """Receive, or raise when the time is up or the worker has died."""
        try:
            if not self._ready.poll(self._milliseconds):
                self._process.kill()  # it would not hear that it is to close either
                raise EnvError(self._index, f"no answer within {self._timeout:g} s")
            return self.connection.recv()
        except (EOFError, OSError) as error:
            raise self._death() from error

    def _death(self) -> EnvError:
        self._process.join(CLOSE_TIMEOUT)
        return EnvError(self._index, f"its process died (exit code {self._process.exitcode})")


def _worker(
    index: int,
    factory: Callable[[], CanonicalEnv],
    pipe: connection.Connection,
    parent_pipe: connection.Connection,
    shared_memory: Any,  # noqa: ANN401
    error_queue: Any,  # noqa: ANN401
    *options: Any,  # noqa: ANN401
) -> None:
    """What a worker process runs."""
    # Signals reach the whole process group, but the rollout under way must end before the main process saves and stops.
    # A handler for SIGTERM, because what a program ignores, the programs that it starts ignore too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    parent_pipe.close()
    try:
        env = factory()
    except EnvError as error:
        error_queue.put((index, EnvError, error, traceback.format_exc()))
        pipe.send((None, False))
        return
    env.alone = True
    with contextlib.suppress(OSError):  # the main process has gone
        _async_worker(index, lambda: env, pipe, parent_pipe, shared_memory, error_queue, *options)


def _end_with_parent() -> None:
    """End this process some seconds after the main process, whatever the env is doing."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        time.sleep(CLOSE_TIMEOUT)
        os._exit(1)


def _kill(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.join()


def _start_server() -> None:
    """Start the fork server: it imports what workers need once, and they inherit its environment and signal mask.

    Maths libraries read these variables when they load: one thread pool per worker would oversubscribe the cores.
    SIGTERM is blocked in the server, and in a worker until its handler is there.
    """
    resource_tracker.ensure_running()  # else the fork server starts it, which unblocks signals
    before = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        multiprocessing.set_forkserver_preload(["__main__", "mhrl.envs"])
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
