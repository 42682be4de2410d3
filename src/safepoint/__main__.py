"""`safepoint`, or `python -m safepoint`: serve agents, and look after what is served."""

from __future__ import annotations

import sys

from safepoint._extras import missing


def main() -> None:
    try:
        from safepoint.cli.main import app

        app(prog_name="safepoint")
    except ModuleNotFoundError as error:
        sys.stderr.write(f"safepoint: {missing('the command line', 'server', error)}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
