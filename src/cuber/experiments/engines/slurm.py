"""Submit a grid to Slurm as an array of processes that divide its runs."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cuber.errors import CuberError
from cuber.runs.files import write_atomically

SCRIPT = "slurm.sh"
TIMEOUT = 60.0
CUBER = "from cuber.cli.main import main; main()"

TEMPLATE = """\
#!/bin/bash
#SBATCH --job-name=cuber-grid
#SBATCH --array=0-{last}
#SBATCH --ntasks=1
#SBATCH --cpus-per-task={threads}
#SBATCH --output=slurm-%A_%a.txt
#SBATCH --requeue
# Slurm sends SIGTERM before the time limit, so that runs save and stop.
#SBATCH --signal=B:TERM@90
cd {folder} || exit 1
exec {command}
"""


def submit_array(arguments: Sequence[str], out: Path, jobs: int, threads: int) -> str:
    """Write ``slurm.sh`` into the directory of runs and submit it; ``SBATCH_...`` variables add other options.

    Args:
        arguments: Those of the command ``cuber`` that every task of the array executes.

    Returns:
        The number of the job.
    """
    if shutil.which("sbatch") is None:
        raise CuberError("--on slurm needs Slurm's command sbatch, which is not on the PATH")
    command = shlex.join([sys.executable, "-c", CUBER, *arguments])
    out.mkdir(parents=True, exist_ok=True)
    script = out / SCRIPT
    text = TEMPLATE.format(last=jobs - 1, threads=threads, folder=shlex.quote(os.getcwd()), command=command)
    write_atomically(script, text)
    try:
        call = ["sbatch", "--parsable", f"--chdir={out}", str(script)]
        done = subprocess.run(call, capture_output=True, text=True, timeout=TIMEOUT, check=True)
    except subprocess.TimeoutExpired:
        raise CuberError(f"sbatch did not answer within {TIMEOUT:.0f} seconds; the script is {script}") from None
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip() or f"exit code {error.returncode}").splitlines()[-1]
        raise CuberError(f"sbatch refused {script}: {reason}") from None
    return done.stdout.strip().split(";")[0]
