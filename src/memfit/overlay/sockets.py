"""Sockets that have a path: processes of one run meet at them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from multiprocessing import process
from typing import Any

from memfit.overlay.path_writers import Lead, led, to_read, to_update
from memfit.overlay.union import Union
from memfit.torch_compat.patches import Patches


def install(patches: Patches, union: Union) -> None:
    # Those of multiprocessing lie in the store itself, under a short name: the path of a socket has 107 bytes at most.
    folder = os.path.join(union.store, "sockets")
    os.mkdir(folder)
    patches.replace_item(process.current_process()._config, "tempdir", folder)  # type: ignore[attr-defined]
    for name, lead in (("bind", to_update), ("connect", to_read), ("connect_ex", to_read)):
        patches.wrap(socket.socket, name, _leading(union, lead))


def _leading(union: Union, lead: Lead) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(below: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: socket.socket, address: Any) -> Any:
            has_path = self.family == getattr(socket, "AF_UNIX", None) and isinstance(address, str) and not address.startswith("\0")
            return below(self, led(union, address, lead) if has_path else address)

        return call

    return make
