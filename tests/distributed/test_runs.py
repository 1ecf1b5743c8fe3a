"""``cuber.learn`` in several processes: the result of one process, one run directory, a killed process, torchrun."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from pathlib import Path
from typing import Any

from torch.nn.modules.module import register_module_forward_hook

from cuber import CuberError
from cuber.cli.main import main
from cuber.core import distributed
from cuber.experiments import Experiment, run
from cuber.training import RunDirectory
from tests.distributed.loops import differences, distance
from tests.distributed.processes import CONTEXT, in_processes
from tests.faults.test_killed import outcome

METHODS = ("cuber", "agem", "multitask")


def experiment(method: str, **fields: Any) -> Experiment:
    """Batches of 33, of which two processes get 16 and 17 samples, and early stopping."""
    return Experiment("overlap-digits", method, tasks=2, epochs=2, batch_size=33, patience=1, threads=1, **fields)


def run_all(directory: Path) -> dict[str, Any]:
    results = {}
    for method in METHODS:
        result = run(experiment(method), directory / method)
        results[method] = result.accuracy, [[epoch.train_loss for epoch in task] for task in result.history]
    return results


def test_two_processes_run_what_one_does(tmp_path: Path) -> None:
    first, second = in_processes(tmp_path / "work", run_all, tmp_path / "two")
    assert first == second
    for method in METHODS:
        run(experiment(method), tmp_path / "one" / method)
        result, weights = outcome(tmp_path / "two" / method)
        expected, model = outcome(tmp_path / "one" / method)
        assert result["accuracy"] == expected["accuracy"], method
        assert distance(weights, model) < 1e-4, method
        assert result["machine"]["processes"] == 2


def run_or_die(directory: Path, dies_after: int | None = None) -> int | str:
    """Run; process 1 kills itself at a forward pass. Return the number of passes, or the error."""
    passes = 0

    def count(*_: Any) -> None:
        nonlocal passes
        passes += 1
        if distributed.rank() == 1 and passes == dies_after:
            os.kill(os.getpid(), signal.SIGKILL)

    hook = register_module_forward_hook(count)
    try:
        run(experiment("cuber", seed=1), RunDirectory(directory, checkpoint_every=1))
    except CuberError as error:
        return str(error)
    finally:
        hook.remove()
    return passes


def test_the_others_end_with_a_sentence_and_the_run_resumes(tmp_path: Path) -> None:
    run_directory = tmp_path / "run"
    _, passes = in_processes(tmp_path / "first", run_or_die, tmp_path / "undisturbed")
    said, killed = in_processes(tmp_path / "second", run_or_die, run_directory, passes // 2)
    assert killed is None
    assert said.startswith("process 0 of 2 cannot reach another one, which has ended or does not answer")
    assert json.loads((run_directory / "error.json").read_text())["message"] == said
    _, fewer = in_processes(tmp_path / "third", run_or_die, run_directory)
    assert fewer < passes
    assert list(differences(outcome(run_directory), outcome(tmp_path / "undisturbed"))) == []


def refused(directory: Path) -> str:
    try:
        run(experiment("gpm"), directory)
    except CuberError as error:
        return str(error)
    return ""


def test_all_processes_hear_why_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("not a run")
    first, second = in_processes(tmp_path / "work", refused, tmp_path / "other")
    assert first == second
    assert "holds files that are not those of a run" in first


def command(rank: int, port: int, folder: Path) -> None:
    """Call the command line with the environment that torchrun makes."""
    os.environ |= dict(zip(distributed.ENVIRONMENT, (str(rank), "2", "localhost", str(port)), strict=True))
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with open(folder / f"{rank}.txt", "w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        options = ["--method", "gpm", "--tasks", "2", "--epochs", "1", "--threads", "1"]
        main(["run", *options, "--out", str(folder / "run")])


def test_the_command_line_joins_the_processes_that_torchrun_starts(tmp_path: Path) -> None:
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    workers = [CONTEXT.Process(target=command, args=(rank, port, tmp_path)) for rank in range(2)]
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        for worker in workers:
            worker.kill()
    first, second = ((tmp_path / f"{rank}.txt").read_text() for rank in range(2))
    assert [worker.exitcode for worker in workers] == [0, 0], first + second
    assert len(re.findall(r"^ACC .* forgetting .* time ", first, re.MULTILINE)) == 1
    assert second == ""
    run(Experiment("overlap-digits", "gpm", tasks=2, epochs=1, threads=1), tmp_path / "one")
    assert outcome(tmp_path / "run")[0]["accuracy"] == outcome(tmp_path / "one")[0]["accuracy"]
