"""A fresh process: continue every checkpoint of a file, and write down what came of each."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

from safepoint import Checkpoint, check_history
from safepoint.history.json_codec import encode_message
from safepoint.testing import run_virtual
from tests.resume.world import World, build


def continue_one(shape: str, data: bytes) -> dict[str, object]:
    world = World()

    async def main() -> dict[str, object]:
        result = await build(shape, world).resume(Checkpoint.from_bytes(data))
        check_history(result.messages)
        return {
            "stop_reason": str(result.stop_reason),
            "effects": world.effects,
            "messages": [encode_message(message) for message in result.messages],
        }

    return run_virtual(main)


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    cases = json.loads(source.read_text())
    results = {key: continue_one(case["shape"], base64.b64decode(case["checkpoint"])) for key, case in cases.items()}
    target.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
