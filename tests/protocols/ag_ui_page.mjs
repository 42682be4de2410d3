// A front end, by the client of the protocol: `node ag_ui_page.mjs VERSION SCENE ADDRESS`. What it saw goes to stdout.
// The client's own verifier rejects a stream whose events are not paired, or that it does not know.
import { createRequire } from "node:module";

const require = createRequire(`${process.env.PACKAGES}/`);
const [version, scene, address] = process.argv.slice(2);
const { HttpAgent } = require(version === "1" ? "@ag-ui/client" : "@ag-ui/client-before-1");

const agent = new HttpAgent({ url: `${address}/ag-ui/editor`, threadId: `page-${version}-${scene}` });
const say = (content) => agent.addMessage({ id: crypto.randomUUID(), role: "user", content });

/** One run: the types of its events, and how the client's promise ended. `on`: what to do at an event. */
async function run(parameters = {}, on = () => {}) {
  const types = [];
  let last = null;
  let failed = null;
  try {
    await agent.runAgent(parameters, {
      onEvent({ event }) {
        types.push(event.type);
        last = event;
        on(event);
      },
      onRunFailed({ error }) {
        failed = String(error.message ?? error);
      },
    });
  } catch (error) {
    failed = String(error.message ?? error);
  }
  return { types, last, failed };
}

async function stop(body = {}) {
  const answer = await fetch(`${address}/ag-ui/editor/stop`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ threadId: agent.threadId, ...body }),
  });
  return (await answer.json()).status;
}

const scenes = {
  async talk() {
    say("think of it");
    const first = await run();
    say("say hi");
    const second = await run();
    return { first: first.types, failed: [first.failed, second.failed], outcome: second.last.outcome ?? null };
  },
  async stop() {
    say("nap");
    let asked = null;
    const stopped = await run({}, (event) => {
      if (event.type === "TOOL_CALL_END") asked ??= stop({ reason: "lunch" });
    });
    const status = await asked;
    const dangling = agent.messages
      .flatMap((message) => message.toolCalls ?? [])
      .filter((call) => !agent.messages.some((message) => message.role === "tool" && message.toolCallId === call.id));
    say("say hi");
    const next = await run();
    return { status, last: stopped.last, failed: stopped.failed, dangling: dangling.length, next: next.last.type };
  },
  async abort() {
    say("silence");
    const stopped = await run({}, (event) => {
      if (event.type === "TEXT_MESSAGE_CONTENT") agent.abortRun();
    });
    say("say hi");
    const next = await run();
    return { types: stopped.types.includes("TEXT_MESSAGE_CONTENT"), next: next.last.type, failed: next.failed };
  },
  async interrupt() {
    say("ask");
    const asked = await run();
    const [question] = asked.last.outcome.interrupts;
    const resume = [{ interruptId: question.id, status: "resolved", payload: "blue" }];
    const next = await run({ resume });
    return { reason: question.reason, failed: next.failed, last: next.last.type };
  },
};

console.log(JSON.stringify(await scenes[scene]()));
