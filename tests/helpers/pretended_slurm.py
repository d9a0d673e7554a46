"""Slurm's programs as small scripts: a job is a process of this machine."""

import os
import stat
from pathlib import Path

import pytest

_PROGRAMS = {
    "sbatch": """
        number=$(($(cat "$SLURM_PRETENDED/last" 2>/dev/null || echo 0) + 1))
        echo $number > "$SLURM_PRETENDED/last"
        export SLURM_JOB_ID=$number SLURM_NTASKS=1 SLURM_JOB_NUM_NODES=1 SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0
        (bash "$1"; echo $? > "$SLURM_PRETENDED/$number.status") >/dev/null 2>&1 &
        echo "Submitted batch job $number"
    """,
    "srun": """
        while [ "${1#--}" != "$1" ]; do [ "$1" = --unbuffered ] || shift; shift; done
        exec "$@"
    """,
    "sacct": """
        echo "JobID|State|NodeList"
        for number in $(seq "$(cat "$SLURM_PRETENDED/last")"); do
            status=$(cat "$SLURM_PRETENDED/$number.status" 2>/dev/null)
            case "$status" in "") state=RUNNING;; 0) state=COMPLETED;; *) state=FAILED;; esac
            echo "$number|$state|here"
        done
    """,
    "scancel": """
        exit 0
    """,
}


def pretend_slurm(folder: Path, monkeypatch: pytest.MonkeyPatch, **programs: str) -> None:
    """Puts the programs first on the path; ``programs`` replaces some of them."""
    for name, text in (_PROGRAMS | programs).items():
        path = folder / name
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("SLURM_PRETENDED", str(folder))
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
