"""The configuration of a server: what holds for runs under any protocol, and what is about HTTP."""

from __future__ import annotations

from dataclasses import dataclass

from safepoint.serving.config import OnCrash, Role, RunLimits, ServingConfig

__all__ = ["Limits", "OnCrash", "Role", "ServerConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(RunLimits):
    """What one key, one run and one request may take.

    `json_values`: values of all kinds in one body. `request_seconds`: how long a client may take to send a request.
    `viewers`: open requests, of all clients, that wait for a run. `cancels`: open cancel requests of one key; no other
    limit refuses a cancel. `wrong_keys`: wrong keys from one address in a minute; a right key is always let in.
    `socket_messages`: messages of one WebSocket in a second; `bad_frames`: unreadable frames of one WebSocket. One more
    closes the socket.
    """

    body_bytes: int = 8_000_000
    header_bytes: int = 32_000
    json_depth: int = 64
    json_values: int = 50_000
    request_seconds: float = 30.0
    viewers: int = 1000
    cancels: int = 256
    wrong_keys: int = 30
    socket_messages: int = 200
    bad_frames: int = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig(ServingConfig):
    """How the server behaves.

    `shutdown_seconds`: what a shutdown may take after SIGTERM, whatever tools declare: live runs look for a safe point,
    are stopped NOW early enough for their ladders, and are forced shortly before its end, `finish` and shields too.
    Closing the store and the connections may take two seconds each on top; keep the sum below the pod's grace period.
    `resume_on_start`: whether the next process resumes the runs that a shutdown stopped.
    `on_crash`: runs whose process died are resumed ("resume"), or closed as they are ("seal").
    `heartbeat_seconds`: how often a process looks for dead processes, and for cancel requests that no push told it of.
    `keep_alive_seconds`: how long a stream is silent before a comment is sent. `stalled_seconds`: how long a client may
    read nothing of what it is sent before its connection is dropped; it can reconnect.
    `allowed_hosts`: host names by which clients may call the server, besides loopback.
    `allowed_origins`: pages of other servers that may call it, with a key: `https://app.example.com` or `regex:…`.
    `default_app`: the app of requests that name none: `/run` without `appName`, and addresses from `/users/` on.
    `insecure`: serve other machines without keys.
    `peer_address`: where other processes on the same storage watch the runs of this one, HOST:PORT; this machine only
    unless said otherwise. None: their viewers see what is stored, and no text before its message is whole.
    `ladder`: how runs of this server are stopped, in place of their agents' ladders. A tool's own ladder stays.
    `role`: "serve" accepts runs and works on them; "api" only accepts them, and others work; "worker" only works. The
    last two need PostgreSQL. `local_slots`: how many accepted runs it works on itself before it leaves further ones to
    others; `job_slots`: how many runs of others it takes at a time.
    """

    limits: Limits = Limits()
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    insecure: bool = False
