// An editor made of the protocol's JavaScript package: each scene talks to `safepoint acp`, and tells what it saw.
//
//   node acp_editor.mjs SCENE COMMAND [ARGUMENT …]     one JSON object on stdout
//
// The package checks every frame that it gets; one that it does not know ends the scene with an error.
import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { Readable, Writable } from "node:stream";
import { pathToFileURL } from "node:url";

// The package is installed elsewhere, and ACP_PACKAGES says where.
const require = createRequire(`${process.env.ACP_PACKAGES}/`);
const acp = await import(pathToFileURL(require.resolve("@agentclientprotocol/sdk")).href);

const [scene, command, ...args] = process.argv.slice(2);
const agent = spawn(command, args, { stdio: ["pipe", "pipe", "inherit"] });
const seen = [];
let wake = () => {};
let permit = async () => ({ outcome: { outcome: "cancelled" } });

const text = () => seen.filter((u) => u.sessionUpdate === "agent_message_chunk").map((u) => u.content.text).join("");
const statuses = () => seen.filter((u) => u.sessionUpdate.startsWith("tool_call")).map((u) => u.status);
async function until(found) {
  while (!found()) await new Promise((resolve) => (wake = resolve));
}

const editor = acp
  .client({ name: "editor" })
  .onNotification(acp.methods.client.session.update, ({ params }) => {
    seen.push(params.update);
    wake();
  })
  .onRequest(acp.methods.client.session.requestPermission, (context) => permit(context));

const scenes = {
  async cancel(ctx, sessionId) {
    const answers = [];
    for (const [prompt, sign] of [["silence", "I begin"], ["nap", "napping"], ["block", "blocking"]]) {
      const turn = ask(ctx, sessionId, prompt);
      await until(() => JSON.stringify(seen).includes(sign));
      await ctx.notify(acp.methods.agent.session.cancel, { sessionId });
      answers.push((await turn).stopReason);
    }
    answers.push((await ask(ctx, sessionId, "say hi")).stopReason);
    return { answers, text: text(), statuses: statuses() };
  },
  async takeBack(ctx, sessionId) {
    const given = new AbortController();
    const turn = ask(ctx, sessionId, "silence", { cancellationSignal: given.signal });
    await until(() => text().includes("I begin"));
    given.abort();
    const first = await turn.then((answer) => answer.stopReason, (error) => error.code ?? String(error));
    return { first, then: (await ask(ctx, sessionId, "say hi")).stopReason };
  },
  async permission(ctx, sessionId) {
    const answers = [];
    for (const optionId of ["allow_once", "reject_once"]) {
      permit = async () => ({ outcome: { outcome: "selected", optionId } });
      answers.push((await ask(ctx, sessionId, "delete")).stopReason);
    }
    permit = async () => ({ outcome: { outcome: "cancelled" } });
    answers.push((await ask(ctx, sessionId, "delete")).stopReason);
    return { answers, text: text(), statuses: statuses().filter((s) => s === "completed" || s === "failed") };
  },
  async replay(ctx, sessionId) {
    const first = await ask(ctx, sessionId, "say hi");
    const before = text();
    seen.length = 0;
    await ctx.request(acp.methods.agent.session.load, { sessionId, cwd: "/project", mcpServers: [] });
    const listed = await ctx.request(acp.methods.agent.session.list, {});
    await ctx.request(acp.methods.agent.session.close, { sessionId });
    const closed = await ask(ctx, sessionId, "say ho").then(() => "answered", (error) => error.code);
    return { first: first.stopReason, same: text() === before, titles: listed.sessions.map((s) => s.title), closed };
  },
};

const ask = (ctx, sessionId, words, options) =>
  ctx.request(acp.methods.agent.session.prompt, { sessionId, prompt: [{ type: "text", text: words }] }, options);

const stream = acp.ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout));
const told = await editor.connectWith(stream, async (ctx) => {
  const clientCapabilities = { fs: { readTextFile: false, writeTextFile: false }, terminal: false };
  await ctx.request(acp.methods.agent.initialize, { protocolVersion: acp.PROTOCOL_VERSION, clientCapabilities });
  const { sessionId } = await ctx.request(acp.methods.agent.session.new, { cwd: "/project", mcpServers: [] });
  return scenes[scene](ctx, sessionId);
});
agent.stdin.end();
const code = await new Promise((resolve) => (agent.exitCode === null ? agent.on("exit", resolve) : resolve(agent.exitCode)));
console.log(JSON.stringify({ ...told, code }));
process.exit(0);
