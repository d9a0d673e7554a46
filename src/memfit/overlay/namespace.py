"""The overlay that the operating system keeps: a mount namespace of this process's own, with every file system under an overlay.

::

    a new root:   /            overlay over the real /             (a user who is not root: an overlay over each directory of it)
                  /home, ...   overlay over each mounted file system
                  a file that is mounted alone: a copy of it
                  /dev, /run   as they are, read-only: devices and sockets can be used; /dev/shm, /run/media: overlays
                  /proc, /sys, and what is mounted read-only: as they are
                  what is written lies in memory (tmpfs), and is gone with the last process in the namespace

Linux only. Root may do it (not in most containers); others may where the system allows user namespaces. Whatever the reason why it
cannot be done, ``enter`` says no, and the caller, a process made to try it, must end.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from memfit.overlay.union import is_system

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_READ_ONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_MS_RELATIME = 1 << 21
_AS_THEY_ARE: Final = frozenset(
    {
        *("autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "efivarfs", "fusectl"),
        *("hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs"),
    }
)
"""File systems that hold no files of the user's."""

_COPIED_BYTES: Final = 16 << 20
"""The largest file that is copied where an overlay cannot be had for it or its directory."""


@dataclass(frozen=True)
class Mount:
    """A line of ``/proc/self/mountinfo``."""

    point: str
    kind: str
    is_read_only: bool

    @classmethod
    def parse(cls, line: str) -> Mount:
        before, _, after = line.partition(" - ")
        fields, (kind, _, options) = before.split(), after.split(maxsplit=2)
        point = fields[4].encode().decode("unicode_escape").encode("latin-1").decode(errors="surrogateescape")
        is_read_only = "ro" in fields[5].split(",") or "ro" in options.split(",")
        return cls(point, kind, is_read_only)


def enter(store: str) -> bool:
    """Puts this process, which must have one thread, on top of an overlay of all files; ``store`` is a real folder for its use."""
    try:
        _prepare_proof(store)
        number = os.open(store, os.O_PATH)
        _try_to_enter(store)
        _prove(store, f"/proc/self/fd/{number}")
        os.close(number)
    except OSError:
        return False
    return True


def _try_to_enter(store: str) -> None:
    cwd = os.getcwd()
    is_root = _leave_the_common_namespace()
    mounts = _mounts()
    # By number, because the new root hides the old paths.
    opened = {mount.point: os.open(mount.point, os.O_PATH) for mount in mounts}
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    memory = os.path.join(store, "memory")
    os.mkdir(memory)
    _mount("tmpfs", memory, "tmpfs", 0, "mode=0755")
    builder = _Builder(memory, is_root)
    os.mkdir(builder.root)
    points = {mount.point for mount in mounts}
    for mount in mounts:
        builder.add(mount, opened[mount.point], {point for point in points if _is_inside(point, mount.point)})
    os.chroot(builder.root)
    os.chdir(cwd)
    for number in opened.values():
        os.close(number)


def _leave_the_common_namespace() -> bool:
    """Is it root who left?"""
    user, group = os.getuid(), os.getgid()
    try:
        _call("unshare", _CLONE_NEWNS)
    except PermissionError:
        _call("unshare", _CLONE_NEWNS | _CLONE_NEWUSER)
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")
        return False
    return True


def _mounts() -> list[Mount]:
    """What can be seen, the outer ones first; where several are on one point, the last."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    found = {mount.point: mount for mount in map(Mount.parse, lines)}
    seen = [mount for mount in found.values() if os.path.lexists(mount.point)]
    return sorted(seen, key=lambda mount: (mount.point != "/", mount.point.count("/"), mount.point))


class _Builder:
    """Builds the new root, one mount after the other."""

    def __init__(self, memory: str, is_root: bool) -> None:
        self._memory, self._is_root = memory, is_root
        self.root = os.path.join(memory, "root")
        self._count = 0

    def add(self, mount: Mount, number: int, inside: set[str]) -> None:
        source, target = f"/proc/self/fd/{number}", self.root + mount.point.rstrip("/")
        if not os.path.lexists(target):
            return  # hidden by another mount, or below one that is taken as it is
        status = os.fstat(number)
        if mount.kind in _AS_THEY_ARE or mount.is_read_only or not stat.S_ISDIR(status.st_mode) or is_system(mount.point):
            _mount(source, target, None, _MS_BIND | _MS_REC)
            if mount.is_read_only:
                return
            if stat.S_ISREG(status.st_mode):
                self._keep_file(source, target, status)
            elif mount.kind not in _AS_THEY_ARE and stat.S_ISDIR(status.st_mode):
                _make_read_only(target)
        elif self._is_root or not inside:
            self._overlay(source, target)
        else:
            self._overlay_each(source, target, mount.point, inside)

    def _keep_file(self, source: str, target: str, status: os.stat_result) -> None:
        """A file that is mounted alone: a copy takes its place, or it cannot be written."""
        if status.st_size > _COPIED_BYTES or not os.access(source, os.R_OK):
            _make_read_only(target)
            return
        self._count += 1
        copy = os.path.join(self._memory, f"file{self._count}")
        shutil.copy2(source, copy)
        if self._is_root:
            os.chown(copy, status.st_uid, status.st_gid)
        _mount(copy, target, None, _MS_BIND)

    def _overlay(self, source: str, target: str) -> None:
        self._count += 1
        upper, work = (os.path.join(self._memory, f"{kind}{self._count}") for kind in ("upper", "work"))
        os.mkdir(upper)
        os.mkdir(work)
        shutil.copymode(source, upper)
        settings = "redirect_dir=on,metacopy=on" if self._is_root else "userxattr"
        _mount("overlay", target, "overlay", 0, f"lowerdir={source},upperdir={upper},workdir={work},{settings}")

    def _overlay_each(self, source: str, target: str, point: str, inside: set[str]) -> None:
        """Linux lets no user hide what is mounted in a directory, so each directory without mounts in it gets its own overlay."""
        for name in os.listdir(source):
            entry, made = os.path.join(source, name), os.path.join(target, name)
            path = os.path.join(point, name)
            status = os.lstat(entry)
            if stat.S_ISLNK(status.st_mode):
                os.symlink(os.readlink(entry), made)
            elif stat.S_ISDIR(status.st_mode):
                os.mkdir(made)
                deeper = {other for other in inside if _is_inside(other, path)}
                if path in inside:
                    continue  # its turn comes
                if deeper:
                    self._overlay_each(entry, made, path, deeper)
                elif os.access(entry, os.R_OK | os.X_OK):
                    self._overlay(entry, made)
            elif stat.S_ISREG(status.st_mode) and os.access(entry, os.R_OK | os.W_OK):
                if status.st_size > _COPIED_BYTES:
                    raise OSError(errno.EFBIG, "too large to be kept apart beside something that is mounted", path)
                shutil.copy2(entry, made)
            else:
                os.close(os.open(made, os.O_CREAT | os.O_WRONLY, 0o600))
                _mount(entry, made, None, _MS_BIND)


def _is_inside(point: str, place: str) -> bool:
    return point != place and point.startswith(place.rstrip("/") + "/")


# -- proof -------------------------------------------------------------------------------------------------------------------


def _prepare_proof(store: str) -> None:
    folder = Path(store, "proof", "old")
    folder.mkdir(parents=True)
    (folder / "file").write_text("before", encoding="ascii")


def _prove(store: str, outside: str) -> None:
    """Does what scripts do with files and some kernels refuse on an overlay; ``outside`` leads to what is really there."""
    proof = Path(store, "proof")
    with open(proof / "old" / "file", "a", encoding="ascii") as file:
        file.write(", after")
    shutil.rmtree(proof / "old")
    os.mkdir(proof / "old")
    (proof / "old" / "new").write_text("after", encoding="ascii")
    os.replace(proof / "old" / "new", proof / "new")
    os.rename(proof / "old", proof / "renamed")
    if sorted(os.listdir(proof)) != ["new", "renamed"] or Path(outside, "proof", "old", "file").read_bytes() != b"before":
        raise OSError(errno.ENOTSUP, "the overlay does not keep files apart")
    for place in {os.getcwd(), os.path.expanduser("~"), tempfile.gettempdir()}:
        if os.access(place, os.W_OK):
            number, name = tempfile.mkstemp(dir=place)
            os.close(number)
            os.unlink(name)


# -- system calls ------------------------------------------------------------------------------------------------------------


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    _call("mount", texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3])


def _make_read_only(target: str) -> None:
    flags = os.statvfs(target).f_flag
    kept = flags & (os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME)
    kept |= _MS_RELATIME if flags & os.ST_RELATIME else 0
    _mount(None, target, None, _MS_REMOUNT | _MS_BIND | _MS_READ_ONLY | kept)


def end_with_parent() -> None:
    """A process whose parent is killed goes too."""
    _call("prctl", 1, 9)


def _call(name: str, *args: object) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
