"""``memfit serve``: a page on this machine, on which the same can be asked with menus and sliders."""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import sys
import webbrowser
from pathlib import Path

from memfit.compare.cache import open_cache
from memfit.errors import ConfigError

_PASSWORD = "MEMFIT_PASSWORD"
_FIRST_PORT = 8765
_NUM_PORTS = 20


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "serve",
        help="a page with menus and sliders: models, GPUs, ledgers, running jobs",
        description="Serves a page on this machine: choose a model and GPUs, see whether it fits, open the ledgers of the "
        "folder and watch jobs that run. Nobody else can reach it: it listens on this machine alone, and its address has a token.",
        examples=(
            ("memfit serve", "this folder, in your browser"),
            ("memfit serve runs --port 9000 --no-open", "another folder; open the address that is printed"),
        ),
    )
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="whose ledgers and scripts are offered; this one by default",
    )
    parser.add_argument("--port", type=int, default=0, metavar="N", help=f"the first free one from {_FIRST_PORT} on by default")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help=f"another interface than this machine's own; needs a password in the environment variable {_PASSWORD}",
    )
    parser.add_argument("--no-open", action="store_true", help="do not open a browser")
    parser.add_argument("--no-cache", action="store_true", help="keep nothing for the next time")


def run(args: argparse.Namespace) -> int:
    try:
        import uvicorn

        from memfit.serve.app import Server, make_app
        from memfit.serve.guard import LOOPBACK, Door
    except ImportError as error:
        raise ConfigError(f"{error.name} is missing: pip install 'memfit[serve]'") from error
    if not args.folder.is_dir():
        raise ConfigError(f"there is no folder {args.folder}")
    password = "" if args.host in LOOPBACK else os.environ.get(_PASSWORD, "")
    if args.host not in LOOPBACK and len(password) < 8:
        raise ConfigError(
            f"{args.host} can be reached from other machines: put a password of at least 8 characters into {_PASSWORD}. It is sent "
            "as it is: use this in a network that you trust, or through ssh -L"
        )
    listening = _listen(args.host, args.port)
    port, token = listening.getsockname()[1], secrets.token_urlsafe(24)
    server = Server(args.folder, open_cache(not args.no_cache))
    app = make_app(server, Door(token=token, host=args.host, port=port, password=password))
    shown = "127.0.0.1" if args.host in LOOPBACK else socket.gethostname() if args.host == "0.0.0.0" else args.host
    address = f"http://{shown}:{port}/?token={token}"
    print(f"memfit serves {args.folder.resolve()} at\n  {address}\nCtrl-C ends it.", flush=True)
    if not args.no_open and sys.stdout.isatty():
        webbrowser.open(address)
    config = uvicorn.Config(app, log_level="error", lifespan="on", server_header=False, timeout_graceful_shutdown=1)
    uvicorn.Server(config).run([listening])
    return 0


def _listen(host: str, port: int) -> socket.socket:
    """On the port that was asked for, or on the first free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for tried in [port] if port else range(_FIRST_PORT, _FIRST_PORT + _NUM_PORTS):
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host.strip("[]"), tried))
            found.listen()
        except OSError as error:
            found.close()
            reason = error.strerror
            continue
        return found
    raise ConfigError(
        f"cannot listen on {host}, port {port or f'{_FIRST_PORT} and those after it'} ({reason}): name another with --port"
    )
