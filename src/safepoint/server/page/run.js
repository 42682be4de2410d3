// One run as this page follows it. A run belongs to the server, not to the page: it is started detached, and any page
// that shows its session finds it, follows it, and can stop it.

import { frames, read, request, Refused, send } from "./api.js";

const LOOK = 400; // milliseconds between two looks at the tree of a live run

export class Follower {
  /** `hears`: told what comes: `event(event, connection)`, `tree(tree)`, `lost()`, `over(follower)`. */
  constructor(id, hears) {
    this.id = id;
    this.hears = hears;
    this.seq = 0;
    this.connection = 0;
    this.leaving = new AbortController();
    this.isOver = false;
  }

  get signal() {
    return this.leaving.signal;
  }

  /** Begin a run with a message. Raises `Refused` if the server does not take it. */
  async begin(body) {
    const answer = await request("POST", "run_sse", { ...body, streaming: true, onDisconnect: "detach" }, { signal: this.signal });
    this.id = answer.headers.get("safepoint-run");
    this.follow(answer).catch(() => this.attach());
    this.watch();
  }

  /** Follow a live run from where this page is until it is over. */
  async attach() {
    this.watch();
    while (!this.signal.aborted) {
      try {
        const answer = await request("GET", `runs/${this.id}/events?after=${this.seq}`, undefined, { signal: this.signal });
        return await this.follow(answer);
      } catch (error) {
        if (this.signal.aborted) return;
        if (error instanceof Refused) return this.finish();
        this.hears.lost();
        await new Promise((done) => setTimeout(done, 1000));
      }
    }
  }

  async follow(answer) {
    this.connection += 1;
    this.hears.connected();
    await frames(answer, (number, event) => {
      if (this.signal.aborted) return;
      if (number !== null) this.seq = number;
      if (event?.id) this.hears.event(event, this.connection);
    });
    if (!this.signal.aborted) this.finish();
  }

  /** Look at the tree while the run is live. */
  watch() {
    if (this.watching) return;
    this.watching = setInterval(() => document.visibilityState === "visible" && this.look(), LOOK);
    this.look();
  }

  /** One look at a time; who asks meanwhile waits for that one. */
  look() {
    if (!this.id) return Promise.resolve();
    this.looking ??= this.readTree().finally(() => (this.looking = null));
    return this.looking;
  }

  async readTree() {
    try {
      const tree = await read(`runs/${this.id}/tree`);
      if (!this.signal.aborted) this.hears.tree(tree);
    } catch {
      // The stream says when the connection is lost; a run that is not found any more ends with it.
    }
  }

  finish() {
    if (this.isOver) return;
    this.isOver = true;
    clearInterval(this.watching);
    this.hears.over(this);
  }

  leave() {
    this.leaving.abort();
    clearInterval(this.watching);
  }

  stop(asked) {
    return send(`runs/${this.id}:cancel`, { waitSeconds: 0, reason: "stopped on the page", ...asked });
  }

  preview(asked) {
    return send(`runs/${this.id}:preview`, asked);
  }

  steer(parts) {
    return send(`runs/${this.id}:steer`, { newMessage: { role: "user", parts }, waitSeconds: 0 });
  }
}
