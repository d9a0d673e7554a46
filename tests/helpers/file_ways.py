"""The usual ways in which training scripts save, delete, rename and overwrite, each run in a folder of its own."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

START = """
import csv, glob, gzip, importlib, logging, multiprocessing, os, pickle, shutil, sqlite3, subprocess, sys, tempfile
from os import remove
from pathlib import Path
import numpy as np
import torch
import safetensors.torch as st
from torch import nn

model = nn.Linear(100, 100).cuda()
optimizer = torch.optim.AdamW(model.parameters())
host = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
top = Path.cwd()
"""

END = """
for _ in range(3):
    model(torch.ones(1, 100, device="cuda")).sum().backward()
    optimizer.step()
"""

_WAYS = r"""
# == torch.save
torch.save(model.state_dict(), "model.pt")
assert torch.load("model.pt")["weight"].is_cuda

# == torch.save to a file
f = open("model.pt", "wb")
torch.save(model.state_dict(), f)
f.close()
assert torch.load("model.pt")["weight"].is_cuda

# == torch.save of host copies
torch.save(host, "model.pt")
assert torch.load("model.pt")["weight"].shape == (100, 100)

# == torch.save of host copies to a file
with open("model.pt", "wb") as f:
    torch.save(host, f)
assert torch.load("model.pt")["weight"].shape == (100, 100)

# == torch.save of host copies, absolute
torch.save(host, here / "model.pt")
assert len(torch.load(here / "model.pt")) == 2

# == torch.save in the old format
torch.save(host, "model.pt", _use_new_zipfile_serialization=False)
assert len(torch.load("model.pt")) == 2

# == pickle
pickle.dump({"a": 1}, open("log.txt", "wb"))
assert pickle.load(open("log.txt", "rb")) == {"a": 1}

# == gzip
gzip.open("log.txt", "wt").write("x")
assert gzip.open("log.txt", "rt").read() == "x"

# == numpy.save
np.save("array.npy", host["weight"].numpy())
assert np.load("array.npy").shape == (100, 100)

# == numpy.tofile
np.arange(3).tofile("array.npy")
assert np.fromfile("array.npy", dtype=int).tolist() == [0, 1, 2]

# == numpy.memmap
m = np.memmap("array.npy", mode="r+", dtype=np.uint8)
m[:] = 7
m.flush()
assert open("array.npy", "rb").read(1) == b"\x07"

# == safetensors
st.save_file(host, "model.safetensors")
assert len(st.load_file("model.safetensors")) == 2

# == safetensors of the GPU
st.save_file(model.state_dict(), "model.safetensors")
assert st.load_file("model.safetensors", device="cuda")["weight"].is_cuda

# == safetensors by safe_open
st.save_file(host, "new.safetensors")
with st.safe_open("new.safetensors", framework="pt") as f:
    assert len(f.keys()) == 2

# == a mapped storage
s = torch.UntypedStorage.from_file("log.txt", True, 4)
s[0] = 1
del s

# == sqlite3
c = sqlite3.connect("log.db")
c.execute("create table if not exists t (a)")
c.execute("insert into t values (1)")
c.commit()
c.close()

# == append
open("log.txt", "a").write("more")
assert open("log.txt").read() == "beforemore"

# == update in place
f = open("log.txt", "r+")
f.write("XX")
f.close()
assert open("log.txt").read() == "XXfore"

# == text
Path("log.txt").write_text("new")
assert Path("log.txt").read_text() == "new" and os.path.getsize("log.txt") == 3

# == csv
csv.writer(open("log.txt", "w", newline="")).writerow([1])

# == logging
h = logging.FileHandler("log.txt", mode="w")
logging.getLogger("x").addHandler(h)
logging.getLogger("x").warning("y")
h.close()

# == os.open
n = os.open("log.txt", os.O_RDWR | os.O_TRUNC)
os.write(n, b"q")
os.close(n)
assert open("log.txt").read() == "q"

# == os.truncate
os.truncate("log.txt", 2)
assert open("log.txt").read() == "be"

# == os.remove
os.remove("log.txt")
assert not os.path.exists("log.txt") and "log.txt" not in os.listdir(".")

# == unlink a path
Path("log.txt").unlink()
assert not Path("log.txt").exists()
assert not glob.glob("log*")

# == missing after unlink
os.remove("log.txt")
try:
    open("log.txt")
    raise SystemExit(3)
except FileNotFoundError as error:
    assert error.filename == "log.txt"

# == os.rename
os.rename("log.txt", "old.txt")
assert open("old.txt").read() == "before" and not os.path.exists("log.txt")

# == os.replace
open("new.tmp", "w").write("new")
os.replace("new.tmp", "log.txt")
assert open("log.txt").read() == "new" and not os.path.exists("new.tmp")

# == backup by renaming
os.replace("log.txt", "log.bak")
open("log.txt", "w").write("new")
assert open("log.bak").read() == "before"

# == rename a directory
os.rename("sub", "moved")
assert open("moved/deep/file.txt").read() == "before" and not os.path.exists("sub")

# == shutil.move
shutil.move("sub", "moved")
assert sorted(p.name for p in Path("moved").rglob("*")) == ["deep", "file.txt"]

# == shutil.rmtree
shutil.rmtree("sub")
assert not os.path.exists("sub/deep/file.txt") and "sub" not in os.listdir()

# == remove and make again
shutil.rmtree("sub")
os.makedirs("sub/deep")
assert os.listdir("sub/deep") == []
Path("sub/deep/n").touch()
assert os.listdir("sub/deep") == ["n"]

# == shutil.copy
shutil.copy("log.txt", "sub/deep/file.txt")
shutil.copytree("sub", "copy")
assert open("copy/deep/file.txt").read() == "before"

# == symbolic links
open("link.txt", "w").write("through")
assert open("log.txt").read() == "through"
os.remove("link.txt")
os.symlink("sub", "way")
assert os.listdir("way") == ["deep"]

# == os.link
os.link("log.txt", "hard.txt")
open("hard.txt", "a").write("x")

# == times and modes
os.utime("log.txt", (1, 1))
os.chmod("log.txt", 0o600)
Path("log.txt").touch()
Path("log.txt").chmod(0o640)

# == chdir
os.makedirs("run/a")
os.chdir("run/a")
assert os.getcwd() == str(here / "run" / "a")
open("x", "w").write("1")
open("../../log.txt", "w").write("2")
os.chdir(here)
assert open("run/a/x").read() == "1"

# == listing
Path("sub/new.txt").touch()
assert sorted(os.listdir("sub")) == ["deep", "new.txt"] == sorted(e.name for e in os.scandir("sub"))
assert sorted(glob.glob("sub/*")) == ["sub/deep", "sub/new.txt"]
assert [len(f) for _, _, f in os.walk("sub")] == [1, 1]

# == temporary files
with tempfile.TemporaryDirectory(dir=".") as d:
    open(d + "/x", "w").write("1")
with tempfile.NamedTemporaryFile(dir=".") as f:
    f.write(b"1")
tempfile.TemporaryFile().write(b"2")

# == names imported before
from os import remove
from shutil import rmtree
remove("log.txt")
rmtree("sub")

# == a module that the run writes
Path("plugin.py").write_text("value = 7")
sys.path.insert(0, ".")
import importlib
importlib.invalidate_caches()
import plugin
assert plugin.value == 7
sys.path.pop(0)
del sys.modules["plugin"]

# == directories by number
n = os.open(".", os.O_RDONLY)
os.unlink("log.txt", dir_fd=n)
assert "log.txt" not in os.listdir(n)
os.close(n)

# == bytes
os.remove(b"log.txt")
assert b"log.txt" not in os.listdir(b".")
open(b"log.txt", "w").write("1")

# == a forked process
import multiprocessing
worker = multiprocessing.get_context("fork").Process(target=lambda: open("log.txt", "w").write("worker"))
worker.start()
worker.join()
assert open("log.txt").read() == "worker"

# == at exit
import atexit
atexit.register(lambda path=str(here / "log.txt"): open(path, "w").write("late"))

# == save, replace, rotate, resume
for step in range(4):
    torch.save({"model": model.state_dict(), "rng": torch.get_rng_state(), "step": step}, "tmp.pt")
    os.replace("tmp.pt", f"step{step}.pt")
    for old in sorted(glob.glob("step*.pt"))[:-2]:
        os.remove(old)
assert sorted(glob.glob("*.pt")) == ["model.pt", "step2.pt", "step3.pt"], glob.glob("*.pt")
state = torch.load("step3.pt", map_location="cuda")
model.load_state_dict(state["model"])
assert state["step"] == 3
torch.set_rng_state(state["rng"].cpu())

# == write and open with Path
with Path("model.pt").open("wb") as f:
    torch.save(model.state_dict(), f)
os.replace("model.pt", "final.pt")
with open("final.pt", "rb") as f:
    assert torch.load(f)["weight"].is_cuda
"""

_BY_OTHER_PROGRAMS = """
# == another program
subprocess.run(["rm", "-r", "sub", "log.txt"], check=True)
subprocess.run("echo x > model.pt", shell=True, check=True)
"""


def _by_name(text: str) -> dict[str, str]:
    parts = re.split(r"^# == (.*)\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


WAYS = _by_name(_WAYS)
BY_OTHER_PROGRAMS = _by_name(_BY_OTHER_PROGRAMS)
"""What only the operating system can hold back."""


def script(ways: dict[str, str]) -> str:
    """Goes all the ways, one after the other, and then trains."""
    parts = [START]
    for name, code in ways.items():
        body = "".join(f"    {line}\n" for line in code.strip().splitlines())
        parts.append(f"os.chdir(top / {name!r})\nhere = Path.cwd()\ntry:\n{body}")
        parts.append(f"except BaseException:\n    print('failed:', {name!r}, flush=True)\n    raise\n")
    return "".join([*parts, "os.chdir(top)\n", END])


def fill(folder: Path) -> None:
    """What somebody has from earlier runs."""
    (folder / "sub" / "deep").mkdir(parents=True)
    for name in ("log.txt", "sub/deep/file.txt"):
        (folder / name).write_text("before")
    torch.save({"weight": torch.arange(4.0)}, folder / "model.pt")
    save_file({"weight": torch.arange(4.0)}, folder / "model.safetensors")
    np.save(folder / "array.npy", np.arange(4))
    (folder / "link.txt").symlink_to("log.txt")
    (folder / "step0.pt").write_text("an older checkpoint")


def state_of(folder: Path) -> dict[str, tuple[object, ...]]:
    """Names, contents, modes and times of everything, as the operating system has them."""
    found = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        status = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(folder))] = (content, status.st_mode, status.st_mtime_ns, status.st_size)
    return found
