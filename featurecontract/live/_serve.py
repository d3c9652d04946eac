"""``capture``: a server as people start it, with capture on, and the probe through its HTTP API."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from featurecontract.capture._armed import machine
from featurecontract.errors import InputError, UsageError
from featurecontract.live._engine import one_line
from featurecontract.live._http import RequestFailed, Server, address_of, is_taken
from featurecontract.live._job import other_prompts
from featurecontract.live._run import drain, ended_by_signals, stop_group, tail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import NoReturn

    from featurecontract.capture import Call
    from featurecontract.probe._data import ProbeData

__all__ = ["SERVED", "capture_served"]

#: Runtimes whose plugin reads FEATURECONTRACT_CAPTURE, and the port that each serves at by default.
SERVED = {"vllm": 8000, "sglang": 30000}
VARIABLE = "FEATURECONTRACT_CAPTURE"
_UP = 1200.0
_SAVED = 60.0


@dataclass(frozen=True, slots=True)
class _Asked:
    runtime: str
    out: Path
    ids: tuple[int, ...]
    say: Callable[[str], None]
    #: ``armed-PID.json`` files of servers before this one, with their times.
    before: frozenset[tuple[str, int]] = frozenset()


def capture_served(
    runtime: str,
    probe: ProbeData,
    out: str | os.PathLike[str],
    *,
    command: Sequence[str] = (),
    url: str | None = None,
    startup: float = _UP,
    progress: Callable[[str], None] | None = None,
) -> tuple[Path, ...]:
    """Send the probe through a server with the plugin and return the captures of it, in ``out/probe``.

    Args:
        runtime: ``vllm`` or ``sglang``.
        probe: What to send.
        out: Where the server's processes leave their captures; for a running server the directory it was started with.
        command: Starts the server; it is stopped afterwards.
        url: Where it answers; for a command, taken from its ``--host`` and ``--port`` by default.
        startup: Seconds that a started server may take until it answers.
        progress: Called with one line per step.

    Raises:
        UsageError: an argument cannot be used.
        InputError: ``nothing-captured``: the port is taken, the server died or refused, the plugin was not loaded.
    """
    if runtime not in SERVED:
        raise UsageError(f"--runtime {runtime}: a server is captured for {', '.join(SERVED)}")
    if bool(command) == bool(url) and not command:
        raise UsageError("name the server's command behind `--`, or a running server with --url")
    if not (math.isfinite(startup) and startup >= 0):
        raise UsageError(f"--startup {startup} is no number of seconds; give 0 or more")
    server = Server(url) if url is not None else None
    place = Path(out).resolve()
    place.mkdir(parents=True, exist_ok=True)
    ids = tuple(int(item) for item in probe.token_ids.tolist())
    asked = _Asked(runtime, place, ids, progress or (lambda _line: None))
    if not command:
        assert server is not None  # noqa: S101 - one of the two, see above
        asked.say(f"sending the probe to {url}")
        return _send(asked, server, where="it was started with")
    host, port = address_of(command, port=SERVED[runtime])
    server = server or Server(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
    if url is None and is_taken(host, port):
        _refuse(
            command[0],
            f"port {port} of {host} is in use: the probe would go to another server",
            "end that server, give the command another --port, or name the running one with --url",
        )
    asked = replace(asked, before=frozenset(_marks(place)))
    with ended_by_signals():
        return _started(asked, list(command), server, startup)


def _started(asked: _Asked, command: list[str], server: Server, startup: float) -> tuple[Path, ...]:
    log = asked.out / "server.log"
    asked.say(f"starting {command[0]} (its output is in {log})")
    environment = os.environ | {VARIABLE: str(asked.out), "PYTHONUNBUFFERED": "1"}
    process: subprocess.Popen[bytes] | None = None
    reader: threading.Thread | None = None
    # From its first moment on: whatever ends this process ends the server too.
    try:
        try:
            process = subprocess.Popen(  # noqa: S603 - the user's own command
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            _refuse(command[0], f"cannot be started ({error.strerror})", "give the command as a shell would find it")
        reader = threading.Thread(target=drain, args=(process, log, None), daemon=True)
        reader.start()
        running = process
        try:
            server.wait(startup, alive=lambda: running.poll() is None)
        except RequestFailed as error:
            reader.join(2.0)
            _refuse(command[0], f"{error}; its last words: {tail(log)}", f"mend what it names; all of it is in {log}")
        asked.say("the server is up; sending the probe")
        return _send(asked, server, where="the command ran with")
    finally:
        if process is not None:
            asked.say("stopping the server")
            stop_group(process)
        if reader is not None:
            reader.join(5.0)


def _send(asked: _Asked, server: Server, *, where: str) -> tuple[Path, ...]:
    """Send another prompt, then the probe, and wait until a capture holds it."""
    # vLLM takes a salt, so that nothing of an earlier run comes from its prefix cache.
    more = {"cache_salt": os.urandom(8).hex()} if asked.runtime == "vllm" else {}
    began = time.time()
    try:
        model = server.model()
        for ids in (other_prompts(asked.ids, 1)[0], asked.ids):
            server.complete(model, ids, **more)
    except RequestFailed as error:
        _refuse(server.base, str(error), "look into the server's log")
    limit = time.monotonic() + _SAVED
    while time.monotonic() < limit:
        found = _holding(asked, began)
        if found:
            return tuple(_kept(asked, path) for path in found)
        if not _armed(asked):
            break
        time.sleep(0.25)
    failures = _failures(asked.out)
    if failures:
        _refuse(str(asked.out), failures, "mend what it names and capture again")
    if not _armed(asked):
        _refuse(
            str(asked.out),
            f"the plugin was not loaded: no process of the server armed it in this directory, which {VARIABLE} must "
            f"name in the environment that {where}",
            "install featurecontract where the server is; VLLM_PLUGINS must be unset or name featurecontract",
        )
    return _refuse(
        str(asked.out),
        f"the probe was answered, and no capture holds it after {_SAVED:.0f} s: the drafter did not run",
        "check that the server was started with a drafter",
    )


def _marks(out: Path) -> Iterator[tuple[str, int]]:
    for path in out.glob("armed-*.json"):
        with contextlib.suppress(OSError):
            yield path.name, path.stat().st_mtime_ns


def _armed(asked: _Asked) -> bool:
    """Return whether a process of this server has loaded the plugin; files of servers that ended do not count."""
    return any(mark not in asked.before and _may_live(asked.out / mark[0]) for mark in _marks(asked.out))


def _may_live(path: Path) -> bool:
    number = path.stem.partition("-")[2]
    try:
        said = json.loads(path.read_text("utf-8"))
        # The pid of another machine, or of a container, says nothing here.
        if not isinstance(said, dict) or said.get("machine") != machine() or not number.isdigit():
            return True
        os.kill(int(number), 0)
    except (ProcessLookupError, FileNotFoundError):
        return False
    except (OSError, ValueError, OverflowError):
        return True
    return True


def _holding(asked: _Asked, began: float) -> tuple[Path, ...]:
    """Return the captures in which rows of the probe stand, written since then."""
    from featurecontract.capture import load

    found = []
    for path in sorted(asked.out.glob("capture-*.json")):
        try:
            if path.stat().st_mtime < began - 1:
                continue
            captures = load(path)
        except (InputError, OSError):
            # Written again in this moment, or without a call.
            continue
        calls = [call for capture in captures for call in capture.calls]
        if any(_is_probe(call.token_ids or (), call.positions or (), asked.ids) for call in calls):
            found.append(path)
    return tuple(found)


def _kept(asked: _Asked, path: Path) -> Path:
    """Save what is about the probe into ``out/probe`` and return its path.

    A server's other traffic has phases of its own, in which nothing could be compared with the probe.
    """
    from featurecontract.capture import load, save

    (whole,) = load(path)
    about = {
        (call.phase, call.point)
        for call in whole.calls
        if _is_probe(call.token_ids or (), call.positions or (), asked.ids)
    }
    calls = _window([call for call in whole.calls if (call.phase, call.point) in about], asked.ids)
    # What was dropped is of other prompts: the probe's last row is here, and came after them. So nothing of these calls
    # was dropped, and those of several ranks can be merged; the tokens of each call are compared when they are.
    return save(replace(whole, calls=calls, dropped=0), asked.out / "probe")


def _window(calls: list[Call], ids: tuple[int, ...]) -> tuple[Call, ...]:
    """Return the calls from the probe's first row to its last, for each point; all of them where a row is not there.

    Ranks of a busy server are saved at different moments: what stands before and behind is not the same in each.
    """
    kept: set[int] = set()
    for point in {call.point for call in calls}:
        wanted = set(range(len(ids)))
        passed: list[int] = []
        for number in range(len(calls) - 1, -1, -1):
            call = calls[number]
            if call.point != point:
                continue
            rows = zip(call.token_ids or (), call.positions or (), strict=False)
            here = {place for token, place in rows if 0 <= place < len(ids) and ids[place] == token}
            if not passed and len(ids) - 1 not in here:
                continue
            passed.append(number)
            wanted -= here
            if not wanted:
                break
        kept |= {n for n, call in enumerate(calls) if call.point == point} if wanted else set(passed)
    return tuple(calls[number] for number in sorted(kept))


def _is_probe(tokens: Sequence[int], positions: Sequence[int], ids: tuple[int, ...]) -> bool:
    last = len(ids) - 1
    return any(place == last and token == ids[last] for token, place in zip(tokens, positions, strict=False))


def _failures(out: Path) -> str:
    for path in sorted(out.glob("capture-*.json")):
        try:
            failure = json.loads(path.read_text("utf-8")).get("failure")
        except (OSError, ValueError, AttributeError):
            continue
        if failure:
            return one_line(f"the capture let go: {failure}")
    return ""


def _refuse(source: str, message: str, next_step: str) -> NoReturn:
    raise InputError.single(source, one_line(message), next_step=next_step, slug="nothing-captured")
