"""Run one role of one contender: MODULE ROLE CONFIG [COUNT or FILE]."""

import json
import sys
from importlib import import_module
from pathlib import Path

from bench.contenders.interface import ContenderConfig, ContenderProgram


def load(module: str, config: ContenderConfig) -> ContenderProgram:
    """Return the program of a module in this folder."""
    program: ContenderProgram = import_module(f"bench.contenders.{module}").Program(config)
    return program


def main(module: str, role: str, config: str, *rest: str) -> None:
    """Run the role."""
    program = load(module, ContenderConfig.from_json(config))
    match role, rest:
        case "create-tables", ():
            program.create_tables()
        case "serve", ():
            program.serve()
        case "work", ():
            program.work()
        case "maintain", ():
            program.maintain()
        case "enqueue", (count,):
            program.enqueue(int(count))
        case "received-ids", (file,):
            Path(file).write_text(json.dumps(sorted(program.received_ids())))
        case _:
            raise SystemExit(f"no such role: {role}")


if __name__ == "__main__":
    main(*sys.argv[1:])
