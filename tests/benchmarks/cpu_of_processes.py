"""Where the CPU seconds of a command and of all Python processes that it starts go, stack by stack.

    from cpu_of_processes import account, sampled
    environment = sampled(folder)          # to start the command with
    ...
    print(account(folder))                 # once it has ended

Every Python process that is started with the environment, or forked from one, looks at its threads ten times a second
and books the CPU time that each has used since (the kernel's own account of the thread) on the stack that it is found
in. So what sums up is CPU time, not wall time, and a thread that waits costs nothing. Threads of libraries that Python
does not know of (a BLAS's, Arrow's) are booked together. Stacks are written by faulthandler: to walk the frames of
running threads as objects ends workers of Python 3.11 by a segmentation fault. Linux.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

FOLDER = "CPU_OF_PROCESSES"
SECONDS = 0.1
KEPT_SECONDS = 1.0

SITE = '''"""Samples this process; put on the path by cpu_of_processes.py."""
import os, sys
if os.environ.get("CPU_OF_PROCESSES"):
    import atexit, faulthandler, json, re, tempfile, threading, time

    def start():
        stacks, before, lock = {}, {}, threading.Lock()
        place = os.path.join(os.environ["CPU_OF_PROCESSES"], f"{os.getpid()}.json")
        pid, dumped = os.getpid(), tempfile.TemporaryFile()
        frame = re.compile(r'  File "(.*)", line \\d+ in (.*)')

        def running():
            dumped.seek(0)
            dumped.truncate()
            faulthandler.dump_traceback(dumped)
            dumped.seek(0)
            found, stack = {}, []
            for line in dumped.read().decode(errors="replace").splitlines():
                if line.startswith(("Thread 0x", "Current thread 0x")):
                    stack = found.setdefault(int(line.partition("0x")[2].split()[0], 16), [])
                elif seen := frame.fullmatch(line):
                    stack.append(f"{seen[1]}:{seen[2]}")
            return {ident: ";".join(reversed(stack)) for ident, stack in found.items()}

        def sample():
            spent = {}
            for task in os.listdir("/proc/self/task"):
                try:
                    with open(f"/proc/self/task/{task}/schedstat") as file:
                        used = int(file.read().split()[0])
                except (OSError, ValueError, IndexError):
                    continue
                number = int(task)
                if used > before.get(number, 0):
                    spent[number] = used - before.get(number, 0)
                before[number] = used
            known = {thread.native_id: thread.ident for thread in threading.enumerate()}
            found = running()
            for number, seconds in spent.items():
                stack = found.get(known.get(number)) or "a thread without Python"
                stacks[stack] = stacks.get(stack, 0) + seconds

        def keep():
            if os.getpid() != pid:
                return
            with lock:
                content = {"command": open("/proc/self/cmdline").read().replace("\\0", " ").strip(),
                           "stacks": {stack: spent / 1e9 for stack, spent in stacks.items()}}
                with open(place + ".new", "w") as file:
                    json.dump(content, file)
                os.replace(place + ".new", place)

        def watch():
            kept = time.monotonic()
            while True:
                time.sleep(SECONDS)
                sample()
                if time.monotonic() - kept > KEPT_SECONDS:
                    keep()
                    kept = time.monotonic()

        atexit.register(keep)
        threading.Thread(target=watch, daemon=True, name="cpu-of-processes").start()

    start()
    os.register_at_fork(after_in_child=start)
'''


def sampled(folder: Path, environment: dict[str, str] | None = None) -> dict[str, str]:
    """The environment of a command whose processes are to be sampled into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    code = SITE.replace("KEPT_SECONDS", str(KEPT_SECONDS)).replace("SECONDS)", f"{SECONDS})")
    (folder / "sitecustomize.py").write_text(code)
    base = dict(os.environ if environment is None else environment)
    paths = [str(folder), *filter(None, [base.get("PYTHONPATH")])]
    return base | {"PYTHONPATH": os.pathsep.join(paths), FOLDER: str(folder)}


def account(folder: Path, most: int = 45) -> str:
    """CPU seconds by process, by stage and by function, as Markdown tables."""
    by_role: Counter[str] = Counter()
    processes: Counter[str] = Counter()
    by_step: dict[str, Counter[str]] = defaultdict(Counter)
    by_function: Counter[tuple[str, str]] = Counter()
    for path in sorted(folder.glob("*.json")):
        kept = json.loads(path.read_text())
        role = role_of(kept["command"])
        processes[role] += 1
        for stack, seconds in kept["stacks"].items():
            names = [short(frame) for frame in stack.split(";")]
            by_role[role] += seconds
            by_step[role][step_of(names)] += seconds
            by_function[role, function_of(names)] += seconds
    total = sum(by_role.values())
    lines = [f"CPU seconds: {total:.1f}", "", "| process | number | CPU s |", "|---|---:|---:|"]
    lines += [f"| {role} | {processes[role]} | {seconds:.1f} |" for role, seconds in by_role.most_common()]
    lines += ["", "| process | step | CPU s |", "|---|---|---:|"]
    lines += [
        f"| {role} | {step} | {seconds:.1f} |"
        for role, _ in by_role.most_common()
        for step, seconds in by_step[role].most_common()
        if seconds >= 0.2
    ]
    lines += ["", "| process | function | CPU s |", "|---|---|---:|"]
    lines += [f"| {role} | {name} | {seconds:.2f} |" for (role, name), seconds in by_function.most_common(most)]
    return "\n".join(lines)


def role_of(command: str) -> str:
    """What a process is for, by its command line."""
    roles = {
        "prefect.server.api.server": "Prefect server",
        "spawn_main": "Dask worker",
        "resource_tracker": "resource tracker",
        "forkserver": "fork server",
        "congruence": "command",
        "mlflow server": "MLflow server",
    }
    return next((role for words, role in roles.items() if words in command), command[:60])


def short(frame: str) -> str:
    """A frame as module and function: of our own code by its room, of packages by their name."""
    path, _, function = frame.rpartition(":")
    for root in ("/congruence/", "/site-packages/"):
        if root in path:
            inside = path.rpartition(root)[2].removesuffix(".py").replace("/", ".")
            return f"{'congruence.' if root == '/congruence/' else ''}{inside}:{function}"
    for room in ("kernels", "tasks", "flows"):
        if f"/{room}/" in path:
            return (
                f"congruence.{room}.{path.rpartition(f'/{room}/')[2].removesuffix('.py').replace('/', '.')}:{function}"
            )
    return f"{Path(path).stem}:{function}"


def step_of(names: list[str]) -> str:
    """The Prefect task or the phase of the process that a stack is in."""
    tasks = [name for name in names if name.startswith("congruence.flows.") and name.endswith("_task")]
    if tasks:
        return "task " + tasks[-1].rpartition(":")[2]
    jobs = [name for name in names if name.startswith(("congruence.tasks.", "congruence.kernels."))]
    if jobs:
        return f"task of ours {jobs[0]}"
    if any(name.startswith("<frozen importlib") or name == "_bootstrap:_find_and_load" for name in names):
        return "importing"
    flows = [name for name in names if name.startswith("congruence.flows.")]
    if flows:
        return f"flow {flows[-1].removeprefix('congruence.flows.')}"
    packages = [name.partition(".")[0] for name in names if "." in name.partition(":")[0]]
    return f"thread of {packages[0]}" if packages else (names[0] if names else "?")


_OURS = ("congruence", "<string>", "__main__")


def function_of(names: Iterable[str]) -> str:
    """The innermost function of ours, with the package that it is in at that moment."""
    frames = list(names)
    if any("importlib" in name for name in frames):
        importing = [name.partition(":")[0].partition(".")[0] for name in frames if name.endswith(":<module>")]
        return f"importing {next((name for name in importing if name not in _OURS), 'congruence')}"
    ours = [place for place, name in enumerate(frames) if name.startswith("congruence.")]
    if not ours:
        return frames[-1] if frames else "?"
    last = frames[-1]
    name = frames[ours[-1]].removeprefix("congruence.")
    return name if ours[-1] == len(frames) - 1 else f"{name} ({last.partition('.')[0].partition(':')[0]})"
