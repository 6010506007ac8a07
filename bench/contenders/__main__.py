"""One role of one contender in this process: MODULE ROLE PLACE [COUNT]."""

import json
import sys
from importlib import import_module
from pathlib import Path

from bench.contenders.interface import Contender, Place


def load(module: str, place: Place) -> Contender:
    """The contender of a module in this folder."""
    program: Contender = import_module(f"bench.contenders.{module}").Program(place)
    return program


def main(module: str, role: str, place: str, *rest: str) -> None:
    """Do what the role says."""
    contender = load(module, Place.from_json(place))
    match role, rest:
        case "prepare", ():
            contender.prepare()
        case "serve", ():
            contender.serve()
        case "work", ():
            contender.work()
        case "fill", (count,):
            contender.fill(int(count))
        case "received", (file,):
            Path(file).write_text(json.dumps(sorted(contender.received())))
        case _:
            raise SystemExit(f"{role}: no such role")


if __name__ == "__main__":
    main(*sys.argv[1:])
