"""Looking at a llama.cpp server from outside: its slots, its counters, its CPU time, its connections."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

PATIENCE = 50.0
"""Seconds until a state that does not come is a failure; nothing should come near it."""


class Probe:
    def __init__(self, address: str, pid: int) -> None:
        self.address = address
        self.pid = pid
        self._port = int(address.rpartition(":")[2])

    async def get(self, path: str) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            answer = await reader.read()
        finally:
            writer.close()
            await writer.wait_closed()
        return answer.partition(b"\r\n\r\n")[2].decode()

    async def busy(self) -> int:
        """How many slots compute right now."""
        slots: list[dict[str, Any]] = json.loads(await self.get("/slots"))  # Any: JSON
        return sum(slot["is_processing"] for slot in slots)

    async def until_busy(self, count: int) -> float:
        """Wait until exactly so many slots compute; the seconds that it took."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.timeout(PATIENCE):
            while await self.busy() != count:
                pass
        return loop.time() - began

    async def until_busier_than(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while await self.busy() <= count:
                pass

    async def counter(self, name: str) -> float:
        for line in (await self.get("/metrics")).splitlines():
            if line.startswith(f"llamacpp:{name} "):
                return float(line.split()[1])
        raise AssertionError(f"the server counts no {name}")

    async def computed(self) -> float:
        """How many batches it has computed since it began."""
        return await self.counter("n_decode_total")

    async def until_computed(self, batches: float) -> None:
        async with asyncio.timeout(PATIENCE):
            while await self.computed() < batches:
                pass

    async def cpu_seconds_in(self, seconds: float) -> float:
        """How much CPU time the server takes in the next so many seconds."""
        before = self._cpu()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.get_running_loop().create_future()
        return self._cpu() - before

    def _cpu(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def connections(self) -> int:
        """How many connections to the server are open, in any state but the one of having been closed by both sides."""
        ours = f":{self._port:04X}"
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
        rows = [line.split() for line in lines]
        return sum(row[2].endswith(ours) and row[3] in ("01", "02", "08") for row in rows)
