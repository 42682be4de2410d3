// A chat page, by the AI SDK's own classes: `node ui_page.mjs SCENE ADDRESS`. What it saw goes to stdout.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(`${process.env.PACKAGES}/`);
const { AbstractChat, DefaultChatTransport, readUIMessageStream, parseJsonEventStream, uiMessageChunkSchema } =
  await import(pathToFileURL(require.resolve("ai")).href);
const [scene, address] = process.argv.slice(2);
const api = `${address}/ui/editor/chat`;

class State {
  status = "ready";
  error = undefined;
  messages = [];
  pushMessage = (message) => (this.messages = this.messages.concat(message));
  popMessage = () => (this.messages = this.messages.slice(0, -1));
  replaceMessage = (index, message) => {
    this.messages = [...this.messages.slice(0, index), structuredClone(message), ...this.messages.slice(index + 1)];
    changed();
  };
  snapshot = (thing) => structuredClone(thing);
}
class Chat extends AbstractChat {
  constructor(options) {
    super({ ...options, state: new State() });
  }
}

let wake = () => {};
const changed = () => wake();
async function until(found) {
  while (!found()) await Promise.race([new Promise((resolve) => (wake = resolve)), new Promise((r) => setTimeout(r, 20))]);
}

const finished = [];
const id = `chat-${scene}`;
const open = (query = "") =>
  new Chat({ id, transport: new DefaultChatTransport({ api: api + query }), onFinish: (end) => finished.push(end) });
const parts = (chat) => chat.messages.findLast((message) => message.role === "assistant")?.parts ?? [];
const states = (chat) => parts(chat).map((part) => `${part.type}:${part.state ?? ""}`);
const text = (chat) => parts(chat).filter((part) => part.type === "text").map((part) => part.text).join("");
const stop = async (body) => {
  const headers = { "content-type": "application/json" };
  const answer = await fetch(`${api}/${id}/stop`, { method: "POST", headers, body: JSON.stringify(body ?? {}) });
  return (await answer.json()).status;
};

const scenes = {
  async talk() {
    const chat = open();
    await chat.sendMessage({ text: "think of it" });
    const first = states(chat);
    await chat.sendMessage({ text: "say hi" });
    return { first, text: text(chat), status: chat.status, reasons: finished.map((end) => end.finishReason) };
  },
  async stop() {
    const chat = open();
    const sent = chat.sendMessage({ text: "nap" });
    await until(() => parts(chat).some((part) => part.type === "dynamic-tool"));
    const status = await stop({ reason: "lunch", messageId: chat.messages.at(-1).id });
    await sent;
    const closed = states(chat);
    const receipt = parts(chat).find((part) => part.type === "data-safepoint").data;
    await chat.sendMessage({ text: "say hi" });
    return { status, closed, receipt, reasons: finished.map((end) => end.finishReason), text: text(chat) };
  },
  async abort() {
    const chat = open();
    const sent = chat.sendMessage({ text: "silence" });
    await until(() => text(chat) !== "");
    await chat.stop();
    await sent;
    await chat.sendMessage({ text: "say hi" });
    return { aborted: finished[0].isAbort, text: text(chat), status: chat.status };
  },
  async resume() {
    const chat = open("?resume=1");
    const sent = chat.sendMessage({ text: "silence" });
    await until(() => text(chat) !== "");
    await chat.stop();
    await sent;
    const response = await fetch(`${api}/${id}/stream`);
    const stream = parseJsonEventStream({ stream: response.body, schema: uiMessageChunkSchema }).pipeThrough(
      new TransformStream({
        transform(chunk, controller) {
          if (!chunk.success) throw chunk.error;
          controller.enqueue(chunk.value);
        },
      }),
    );
    let last = null;
    let asked = null;
    for await (const message of readUIMessageStream({ stream })) {
      last = message;
      if (message.parts.some((part) => part.type === "text" && part.text)) asked ??= stop();
    }
    const late = await fetch(`${api}/${id}/stream`);
    return {
      same: last.id === chat.messages.at(-1).id,
      text: last.parts.filter((part) => part.type === "text").map((part) => `${part.text}:${part.state}`),
      status: await asked,
      late: late.status,
    };
  },
  async approve() {
    const chat = open();
    await chat.sendMessage({ text: "delete" });
    const part = parts(chat).find((each) => each.type === "dynamic-tool");
    const asked = [part.state, part.approval?.reason ?? null];
    await chat.addToolApprovalResponse({ id: part.approval.id, approved: true });
    await chat.sendMessage();
    const after = parts(chat).find((each) => each.type === "dynamic-tool");
    return { asked, state: after.state, output: after.output, count: chat.messages.length, text: text(chat) };
  },
  async fail() {
    const chat = open();
    await chat.sendMessage({ text: "fail" });
    return { status: chat.status, error: chat.error.message };
  },
};

console.log(JSON.stringify(await scenes[scene]()));
