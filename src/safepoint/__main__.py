"""`safepoint`, or `python -m safepoint`: serve agents, and look after what is served."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from safepoint.cli.main import app

        app(prog_name="safepoint")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "safepoint":
            raise
        sys.stderr.write(f"safepoint: the command line needs {error.name}: install safepoint[server]\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
