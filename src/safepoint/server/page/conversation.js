// The conversation: messages, tool calls with their output, questions, and how each turn ended.
//
// What is shown comes from events, by their ids: a piece of text, its whole message and a replay of both are the same
// element. So reading a stored session, following a live run and coming back to one are one thing. How calls stand,
// and for how long, comes from the run's tree.

import { button, download, icon, make } from "./dom.js";
import { markdown } from "./markdown.js";
import { Questions } from "./questions.js";
import { callState, clock, plain, seconds, summary } from "./words.js";

const SHOWN_LINES = 6;
const PAINT = 100; // milliseconds between two paints of words or output
const LARGE = 1_000_000;

export class Conversation {
  /** `does`: what it asks of the page: `stopCall(path, name)`, `answer(parts)`, `retry()`. */
  constructor(log, does) {
    this.log = log;
    this.does = does;
    this.questions = new Questions(does);
    this.latest = document.getElementById("latest");
    this.latest.onclick = () => this.toEnd();
    log.addEventListener("scroll", () => (this.latest.hidden = this.atEnd()));
    this.clear();
  }

  clear(empty) {
    this.shown = new Map(); // elements by event id
    this.calls = new Map(); // cards by call id
    this.painting = new Map();
    this.connection = 0;
    this.column = make("div.col");
    this.log.replaceChildren(empty ?? this.column);
    this.latest.hidden = true;
  }

  get isEmpty() {
    return !this.column.childElementCount;
  }

  begin() {
    if (!this.column.isConnected) this.log.replaceChildren(this.column);
  }

  // -- events ---------------------------------------------------------------------------------------------------------

  show(event, connection = 0) {
    this.connection = connection;
    const output = event.partial ? event.content.parts.filter((part) => part.functionResponse) : [];
    this.keepAtEnd(() => {
      this.begin();
      if (output.length) output.forEach((part) => this.showOutput(part.functionResponse));
      else this.showEvent(event);
    });
  }

  showEvent(event) {
    let element = this.shown.get(event.id);
    if (!element) {
      element = make("div");
      this.shown.set(event.id, element);
      this.column.append(element);
    }
    element.className = event.author === "user" ? "turn mine-turn" : "turn said";
    if (event.partial) this.showWords(element, event);
    else this.showWhole(element, event);
  }

  showWords(element, event) {
    // The first piece that a connection brings holds everything so far.
    if (element.connection !== this.connection) element.replaceChildren();
    element.connection = this.connection;
    element.classList.add("under-way");
    for (const part of event.content.parts) {
      const kind = part.thought ? "thought" : "words";
      let last = element.lastElementChild;
      if (!last?.classList.contains(kind)) {
        last = part.thought ? thoughtOf("") : wordsOf("");
        element.append(last);
      }
      last.text += part.text;
      this.paintLater(last, () => paintWords(last));
    }
  }

  showWhole(element, event) {
    element.replaceChildren();
    element.connection = undefined;
    const mine = event.author === "user";
    let group = null;
    for (const part of event.content?.parts ?? []) {
      if (part.functionResponse) this.showResult(part.functionResponse);
      else if (part.functionCall && part.functionCall.name !== "adk_request_input") {
        group ??= make("div.calls");
        group.append(this.card(part.functionCall, event));
      } else if (part.text !== undefined) element.append(mine ? make("p.mine", part.text) : wordsPainted(part));
      else if (part.inlineData || part.fileData) element.append(attachment(part));
    }
    if (group) element.append(group);
    for (const entry of event.customMetadata?.safepointLedger ?? []) this.setState(entry.callId, entry);
    const asked = event.customMetadata?.safepointQuestions ?? [];
    if (event.errorCode) element.append(this.endNote(event));
    if (!element.childNodes.length) element.remove();
    else if (!element.isConnected) this.column.append(element);
    // Beside the message, which is told again when the run goes on: the answer stays in sight.
    if (asked.length) this.column.append(this.questions.show(asked, this.calls));
  }

  endNote(event) {
    const text = (event.errorMessage ?? "").replace(/^\[Safepoint: (.*)\]$/s, "$1");
    if (event.errorCode === "INVOCATION_ABORTED") return make("p.note.stopped", { title: text }, icon("stop", "fill"), make("span", "Stopped"));
    const retry = button("tiny", "Try again", () => this.does.retry());
    const sentence = KNOWN[event.errorCode] ?? `Failed: ${text}`;
    const details = KNOWN[event.errorCode] ? null : make("details", make("summary", "Details"), make("code", `${event.errorCode}: ${text}`));
    return make("div.note.failed", icon("cut", "bad"), make("div", make("p", sentence), details), retry);
  }

  /** The words of a person, before the server has them. */
  showMine(text, files) {
    const element = make("div.turn.mine-turn", text && make("p.mine", text), files.map((name) => make("p.mine.file", icon("clip"), name)));
    this.begin();
    this.column.append(element);
    this.toEnd();
    return element;
  }

  add(element) {
    this.keepAtEnd(() => {
      this.begin();
      this.column.append(element);
    });
  }

  settled() {
    for (const element of this.log.querySelectorAll(".under-way")) element.classList.remove("under-way");
    this.paintAll();
  }

  // -- calls ----------------------------------------------------------------------------------------------------------

  card(call, event) {
    let card = this.calls.get(call.id);
    if (!card) {
      card = new Card(call, this);
      this.calls.set(call.id, card);
    }
    if (event.longRunningToolIds?.includes(call.id)) card.update({ state: "waiting" });
    return card.element;
  }

  showOutput(told) {
    this.calls.get(told.id)?.output(told.response.output, this.connection);
  }

  showResult(result) {
    const { state, ...rest } = result.response ?? {};
    const values = Object.values(rest), failed = rest.error !== undefined;
    const card = this.calls.get(result.id);
    card?.result(values.length === 1 ? plain(values[0]) : plain(rest));
    card?.update({ state: state ?? (failed ? "failed" : "finished"), error: failed ? plain(rest.error) : "" });
  }

  setState(id, entry) {
    this.calls.get(id)?.update(entry);
  }

  /** Times, rungs and paths, as the run's tree has them. */
  update(tree) {
    const doing = new Map(); // what the agent inside a call is doing
    for (const node of tree.nodes) {
      if (node.kind === "tool" && node.state === "running") doing.set(node.path, node);
    }
    const over = !["queued", "live", "paused"].includes(tree.run.state);
    for (const node of tree.nodes) {
      const card = node.callId ? this.calls.get(node.callId) : null;
      if (!card) continue;
      const inner = [...doing.values()].find((each) => each.path.startsWith(`${node.path}/`));
      card.update({ ...node, over, inner: inner ? `${inner.name}: ${summary(inner.arguments)}` : "" }, tree.now);
    }
    for (const group of this.log.querySelectorAll(".calls")) {
      group.classList.toggle("together", group.querySelectorAll(".call.live").length > 1);
    }
  }

  // -- painting and scrolling -----------------------------------------------------------------------------------------

  /** Words and output are painted at most ten times a second. */
  paintLater(what, paint) {
    if (this.painting.has(what)) return;
    this.painting.set(what, paint);
    if (this.painting.size === 1) setTimeout(() => this.paintAll(), PAINT);
  }

  paintAll() {
    const due = [...this.painting.values()];
    this.painting.clear();
    this.keepAtEnd(() => due.forEach((paint) => paint()));
  }

  atEnd() {
    return this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 80;
  }

  toEnd() {
    this.log.scrollTop = this.log.scrollHeight;
    this.latest.hidden = true;
  }

  keepAtEnd(change) {
    const follow = this.atEnd();
    change();
    if (follow) this.log.scrollTop = this.log.scrollHeight;
    else this.latest.hidden = this.atEnd();
  }
}

const KNOWN = {
  MAX_STEPS: "Stopped: too many steps, not finished.",
  MAX_TOKENS: "The answer was cut off by the model's limit.",
  REFUSED: "The model declined to answer.",
  BUDGET: "Stopped at its limit.",
};

const wordsOf = (text) => Object.assign(make("div.words"), { text });

function thoughtOf(text) {
  const inside = make("div");
  return Object.assign(make("details.thought", make("summary", "Thinking"), inside), { text, inside });
}

function paintWords(element) {
  (element.inside ?? element).replaceChildren(...markdown(element.text));
}

function wordsPainted(part) {
  const element = part.thought ? thoughtOf(part.text) : wordsOf(part.text);
  paintWords(element);
  return element;
}

function attachment(part) {
  const { mimeType, data, displayName } = part.inlineData ?? {};
  if (data && /^image\/(png|jpeg|gif|webp)$/.test(mimeType)) {
    const standard = data.replaceAll("-", "+").replaceAll("_", "/");
    return make("img.picture", { src: `data:${mimeType};base64,${standard}`, alt: displayName ?? "Picture" });
  }
  return make("p.mine.file", icon("clip"), displayName ?? part.fileData?.fileUri ?? mimeType);
}

/** One tool call: a line when it is over, a card with its output while it runs. */
class Card {
  constructor(call, conversation) {
    this.call = call;
    this.conversation = conversation;
    this.node = { state: "running", arguments: call.args };
    this.text = "";
    this.isResult = false;
    this.expanded = false;
    this.sign = make("span.sign");
    this.word = make("span.word");
    this.time = make("span.num");
    this.about = make("span.mono.ell.grow", summary(call.args));
    this.toggle = button("quiet toggle", "", () => this.setExpanded(!this.expanded), { "aria-expanded": "false" });
    this.toggle.append(make("b", call.name), this.about);
    this.halt = button("quiet tiny icon", "", () => conversation.does.stopCall(this.node.path, call.name), {
      "aria-label": `Stop ${call.name}`,
      hidden: true,
    });
    this.halt.append(icon("stop", "fill"));
    this.body = make("pre.output", { tabindex: 0, hidden: true, "aria-live": "off" });
    this.more = make("p.more", { hidden: true });
    this.arguments = make("dl.arguments", { hidden: true });
    const head = make("header", this.sign, this.toggle, this.word, this.time, this.halt);
    this.element = make("article.call", { "aria-label": `Call of ${call.name}` }, head, this.arguments, this.body, this.more);
    this.update({});
  }

  update(changes, now) {
    this.node = { ...this.node, ...changes };
    const node = this.node, [sign, tone, word] = callState(node, node.over);
    const live = ["running", "queued"].includes(node.state);
    this.element.classList.toggle("live", node.state === "running");
    this.element.dataset.state = node.state;
    if (this.drawn !== sign + tone) this.sign.replaceChildren(icon(sign, tone));
    this.drawn = sign + tone;
    this.word.className = `word ${tone.replace("spin", "")}`;
    this.word.textContent = word;
    this.about.textContent = node.inner || summary(this.call.args);
    const until = node.endedAt ?? (live ? now : undefined);
    const lasted = node.startedAt && until ? Math.max(0, until - node.startedAt) : null;
    this.time.textContent = lasted === null ? "" : live ? clock(lasted) : seconds(lasted);
    this.halt.hidden = !live || !node.path;
    this.paint();
  }

  setExpanded(expanded) {
    this.expanded = expanded;
    this.toggle.setAttribute("aria-expanded", String(expanded));
    if (expanded && !this.arguments.childElementCount) {
      for (const [name, value] of Object.entries(this.call.args ?? {})) this.arguments.append(make("dt", name), make("dd.mono", plain(value)));
    }
    this.paint();
  }

  /** More of what the call tells while it runs; its result takes the place of that. */
  output(text, connection) {
    if (this.isResult) return;
    if (this.connection !== connection) this.text = "";
    this.connection = connection;
    this.text += text;
    this.conversation.paintLater(this, () => this.paint());
  }

  result(text) {
    this.text = text;
    this.isResult = true;
    this.paint();
  }

  paint() {
    const visible = (this.expanded || this.node.state === "running") && Boolean(this.text);
    this.body.hidden = !visible;
    this.arguments.hidden = !this.expanded || !this.arguments.childElementCount;
    this.more.hidden = true;
    if (!visible) return;
    const lines = this.text.slice(-LARGE).split("\n");
    while (lines.length > 1 && !lines.at(-1)) lines.pop();
    const whole = this.expanded && this.text.length <= LARGE;
    this.body.classList.toggle("tail", !whole);
    this.body.textContent = (whole ? lines : lines.slice(-SHOWN_LINES)).join("\n");
    if (whole || lines.length <= SHOWN_LINES) return;
    this.more.hidden = false;
    const large = this.text.length > LARGE;
    const act = large
      ? button("quiet tiny", "Save the output", () => download(`${this.call.name}.txt`, this.text, "text/plain"))
      : button("quiet tiny", `Show all ${lines.length} lines`, () => this.setExpanded(true));
    this.more.replaceChildren(act);
  }
}
